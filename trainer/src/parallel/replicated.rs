//! Data parallelism: every rank keeps the whole model.
//!
//! Source: Li et al., "PyTorch Distributed", VLDB 13(12), 2020.

use super::{DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, SquareSum};
use crate::allocator::Allocator;
use crate::error::Result;
use crate::flat::ParamStore;
use crate::optim::{Optimizer, Step};
use crate::parallel::grad_reducer::{GradReducer, GradStorage};
use crate::parallel::optimizer_shards::{BufferFrom, OptimizerShards, StepContext};
use crate::parallel::strategy_core::StrategyCore;
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::step_plan::{Direction, StepPlan};
use crate::strategy::Strategy;
use std::sync::Arc;
use std::time::Duration;

/// Keeps whole weights and gradients on every rank, and reduces gradients in buckets.
pub struct Replicated {
    base: StrategyCore,
    shards: OptimizerShards,
    grad_reducer: GradReducer,
}

impl Replicated {
    /// Creates a strategy in which every rank keeps everything. The weights are those of rank 0.
    ///
    /// # Errors
    /// Returns the error of a failed broadcast.
    pub fn new(
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        let base = StrategyCore::new(ParallelKind::Replicated, inventory, team, settings, memory)?;
        let layout = base.layout();
        let range = |bucket| 0..layout[bucket].count;
        let shards = OptimizerShards::new(inventory, &layout, memory, settings, range)?;
        let grad_reducer = GradReducer::new(GradStorage::Full, &base);
        let mut made = Self { base, shards, grad_reducer };
        made.initialize()?;
        Ok(made)
    }

    fn initialize(&mut self) -> Result<()> {
        let layout = self.base.layout();
        for bucket in layout.ids() {
            let mut weights =
                self.base.store.initial_weights(bucket, 0..layout[bucket].count, self.base.settings.seed)?;
            if let Some(group) = &self.base.group {
                weights.broadcast(group.peers(), 0)?;
            }
            self.base.store.put_weights(bucket, weights);
            self.shards.initialize(bucket, self.base.settings.seed)?;
        }
        Ok(())
    }
}

impl Strategy for Replicated {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.base.begin_step(plan);
        Ok(())
    }

    fn pre_unit(&mut self, unit: UnitId, _: Direction) -> Result<()> {
        self.base.store.widen_unit(unit)
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.base.store.drop_widened(unit);
        self.grad_reducer.end_visit(&mut self.base, unit, way)
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        self.grad_reducer.grad_ready(&mut self.base, id)
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.base.store.weights(id)
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.base.store.weights_and_gradient(id)
    }

    fn device_store(&self, _: ParameterId) -> Option<&ParamStore> {
        Some(&self.base.store).filter(|store| store.is_on_device())
    }

    fn device_store_mut(&mut self, _: ParameterId) -> Option<&mut ParamStore> {
        Some(&mut self.base.store).filter(|store| store.is_on_device())
    }
}

impl DataParallel for Replicated {
    fn finish_backward(&mut self) -> Result<()> {
        self.grad_reducer.finish(&mut self.base)
    }

    fn square_sum(&mut self) -> Result<SquareSum> {
        self.grad_reducer.square_sum(&mut self.base, &self.shards)
    }

    fn finish_norm(&self, squares: SquareSum) -> Result<f64> {
        self.base.finish_norm(squares)
    }

    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()> {
        for bucket in self.base.trainable_buckets() {
            let gradients = self.grad_reducer.take_gradients(&mut self.base, bucket)?;
            let weights = BufferFrom { buffer: self.base.store.weights_mut(bucket), start: 0 };
            // Every rank keeps whole matrices, so a step of a whole matrix gathers nothing from the
            // group.
            let (group, tensor) = (None, self.base.tensor.as_ref());
            let stride = StepContext { optimizer, step, group, tensor };
            self.shards.update(bucket, weights, gradients.view(), &stride)?;
            self.grad_reducer.clear_after_step(&mut self.base, bucket, gradients.buffer)?;
        }
        Ok(())
    }

    fn wait_all(&mut self) -> Result<()> {
        self.base.check()
    }

    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()> {
        self.wait_all()?;
        for bucket in self.base.layout().ids() {
            let weights = BufferFrom { buffer: self.base.store.weights_mut(bucket), start: 0 };
            self.shards.for_each_shard(bucket, weights, visit)?;
        }
        // A pending collective may have failed.
        self.base.check()
    }

    fn broadcast_params(&mut self) -> Result<()> {
        self.base.check()
    }

    fn is_replicated(&self, _: ParameterId) -> bool {
        true
    }

    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.shards.alloc_moments(count)
    }

    fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.base.wait_time)
    }
}
