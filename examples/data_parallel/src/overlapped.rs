//! Overlapped form: gradients travel while backward computes.

use crate::{Form, Replica};
use std::time::Duration;
use unisono::{Avg, Work};
use unisono_nn::Result;
use unisono_nn::parameter::{ParameterId, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan, Work as VisitWork};
use unisono_nn::strategy::Strategy;
use unisono_parallel::optimizer::{Optimizer, Step};

/// Starts to reduce each gradient as soon as its last use has added to it. Waits for all reductions
/// at the end of backward.
pub struct Overlapped {
    pub(crate) replica: Replica,
    /// Uses in backward that have not added to a gradient yet, by parameter.
    uses_left: Vec<usize>,
    pending: Vec<(ParameterId, Work<Vec<f32>>)>,
}

impl Overlapped {
    /// Creates the form over a model.
    pub fn new(replica: Replica) -> Self {
        Self { replica, uses_left: Vec::new(), pending: Vec::new() }
    }
}

impl Strategy for Overlapped {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        let is_backward = |unit| {
            plan.visits().iter().filter(move |visit| visit.unit == unit && visit.work == VisitWork::Backward)
        };
        let rounds = is_backward(UnitId(0)).count();
        self.uses_left =
            self.replica.inventory.parameters.iter().map(|parameter| rounds * parameter.use_count).collect();
        Ok(())
    }

    fn pre_unit(&mut self, _: UnitId, _: Direction) -> Result<()> {
        Ok(())
    }

    fn post_unit(&mut self, _: UnitId, _: Direction) -> Result<()> {
        Ok(())
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        self.uses_left[id.0] -= 1;
        if self.uses_left[id.0] == 0 {
            let gradient = std::mem::take(&mut self.replica.gradients[id.0]);
            self.pending.push((id, self.replica.group.all_reduce_async(gradient, Avg)));
        }
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        &self.replica.weights[id.0]
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.replica.weights_and_gradient(id)
    }
}

impl Form for Overlapped {
    fn finish_backward(&mut self) -> Result<()> {
        for (id, work) in std::mem::take(&mut self.pending) {
            self.replica.gradients[id.0] = self.replica.timed(|_| work.wait())?;
        }
        Ok(())
    }

    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()> {
        let trained = self.replica.trained();
        trained.into_iter().for_each(|id| self.replica.update(id, optimizer, step));
        self.replica.clear_gradients();
        Ok(())
    }

    fn weight_bits(&mut self) -> Result<Vec<u32>> {
        Ok(self.replica.weight_bits())
    }

    fn take_wait_time(&mut self) -> Duration {
        self.replica.take_wait_time()
    }
}
