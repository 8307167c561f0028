//! Owners: the optimizer state of each parameter is kept by one rank.

use crate::{Form, Overlapped, Replica};
use std::time::Duration;
use unisono::Work;
use unisono_nn::Result;
use unisono_nn::parameter::{ParameterId, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::Strategy;
use unisono_parallel::optimizer::{Optimizer, Step};

/// Lets the owner of each parameter update it and send the weights to all others. They arrive
/// while the next forward computes.
///
/// Any optimizer works, because an owner has whole parameters. Three times the size of the
/// parameters is sent, where the shards of ZeRO-1 send two.
pub struct Owners {
    inner: Overlapped,
    /// Rank that owns each parameter.
    owners: Vec<usize>,
    /// Weights under way, by parameter.
    pending: Vec<Option<Work<Vec<f32>>>>,
}

impl Owners {
    /// Creates the form over a model.
    pub fn new(replica: Replica) -> Self {
        let sizes: Vec<usize> = replica.weights.iter().map(Vec::len).collect();
        let owners = assign(&sizes, replica.group.size());
        Self { inner: Overlapped::new(replica), owners, pending: sizes.iter().map(|_| None).collect() }
    }

    /// Returns the rank that owns each parameter.
    pub fn owners(&self) -> &[usize] {
        &self.owners
    }

    /// Returns the model of this rank.
    pub fn replica(&self) -> &Replica {
        &self.inner.replica
    }

    fn wait(&mut self, id: ParameterId) -> Result<()> {
        if let Some(work) = self.pending[id.0].take() {
            self.inner.replica.weights[id.0] = self.inner.replica.timed(|_| work.wait())?;
        }
        Ok(())
    }
}

impl Strategy for Owners {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.inner.begin_step(plan)
    }

    fn pre_unit(&mut self, unit: UnitId, _: Direction) -> Result<()> {
        let used: Vec<_> = self.inner.replica.inventory.present_of(unit).collect();
        used.into_iter().try_for_each(|id| self.wait(id))
    }

    fn post_unit(&mut self, _: UnitId, _: Direction) -> Result<()> {
        Ok(())
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        self.inner.grad_ready(id)
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.inner.weights(id)
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.inner.weights_and_gradient(id)
    }
}

impl Form for Owners {
    fn finish_backward(&mut self) -> Result<()> {
        self.inner.finish_backward()
    }

    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()> {
        (0..self.pending.len()).try_for_each(|id| self.wait(ParameterId(id)))?;
        let replica = &mut self.inner.replica;
        // The first unit is needed first.
        for id in replica.trained().into_iter().rev() {
            let owner = self.owners[id.0];
            if owner == replica.group.rank() {
                replica.update(id, optimizer, step);
            }
            let weights = std::mem::take(&mut replica.weights[id.0]);
            self.pending[id.0] = Some(replica.group.broadcast_async(weights, owner));
        }
        replica.clear_gradients();
        Ok(())
    }

    fn weight_bits(&mut self) -> Result<Vec<u32>> {
        (0..self.pending.len()).try_for_each(|id| self.wait(ParameterId(id)))?;
        self.inner.weight_bits()
    }

    fn take_wait_time(&mut self) -> Duration {
        self.inner.take_wait_time()
    }
}

/// Assigns an owner to each parameter: the largest first, each to the rank with the least load.
fn assign(sizes: &[usize], ranks: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..sizes.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(sizes[index]));
    let (mut owners, mut loads) = (vec![0; sizes.len()], vec![0; ranks]);
    for index in order {
        let owner = (0..ranks).min_by_key(|&rank| loads[rank]).expect("there are ranks");
        loads[owner] += sizes[index];
        owners[index] = owner;
    }
    owners
}
