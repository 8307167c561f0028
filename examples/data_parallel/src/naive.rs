//! Naive form: nothing is sent before backward has ended.

use crate::{Form, Replica};
use std::time::Duration;
use unisono::Avg;
use unisono_nn::Result;
use unisono_nn::parameter::{ParameterId, UnitId};
use unisono_nn::step_plan::Direction;
use unisono_nn::strategy::Strategy;
use unisono_parallel::optimizer::{Optimizer, Step};

/// Reduces each gradient after backward, one after the other.
pub struct Naive(Replica);

impl Naive {
    /// Creates the form over a model.
    pub fn new(replica: Replica) -> Self {
        Self(replica)
    }
}

impl Strategy for Naive {
    fn pre_unit(&mut self, _: UnitId, _: Direction) -> Result<()> {
        Ok(())
    }

    fn post_unit(&mut self, _: UnitId, _: Direction) -> Result<()> {
        Ok(())
    }

    fn grad_ready(&mut self, _: ParameterId) -> Result<()> {
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        &self.0.weights[id.0]
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.0.weights_and_gradient(id)
    }
}

impl Form for Naive {
    fn finish_backward(&mut self) -> Result<()> {
        for id in self.0.trained() {
            self.0.timed(|replica| replica.group.all_reduce(&mut replica.gradients[id.0], Avg))?;
        }
        Ok(())
    }

    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()> {
        self.0.trained().into_iter().for_each(|id| self.0.update(id, optimizer, step));
        self.0.clear_gradients();
        Ok(())
    }

    fn weight_bits(&mut self) -> Result<Vec<u32>> {
        Ok(self.0.weight_bits())
    }

    fn take_wait_time(&mut self) -> Duration {
        self.0.take_wait_time()
    }
}
