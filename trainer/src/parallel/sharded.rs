//! ZeRO stages 1 and 2: every rank keeps whole weights and a shard of the other state.
//!
//! Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward training trillion
//! parameter models", SC 2020.

use super::{DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, SquareSum};
use crate::allocator::Allocator;
use crate::error::Result;
use crate::flat::{BucketId, ParamStore};
use crate::optim::{Optimizer, Step};
use crate::parallel::grad_reducer::{GradReducer, GradStorage};
use crate::parallel::optimizer_shards::{BufferFrom, OptimizerShards, StepContext};
use crate::parallel::param_broadcast::ParamBroadcast;
use crate::parallel::strategy_core::StrategyCore;
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::step_plan::{Direction, StepPlan};
use crate::strategy::Strategy;
use std::sync::Arc;
use std::time::Duration;

/// Shards the optimizer state. Gradients stay whole until all are reduced (stage 1), or are reduced
/// as they become ready and then freed (stage 2).
pub struct Sharded {
    base: StrategyCore,
    shards: OptimizerShards,
    grad_reducer: GradReducer,
    /// Pending gathers of updated weights.
    param_broadcast: ParamBroadcast,
}

impl Sharded {
    /// Creates ZeRO stage 1, which shards the optimizer state.
    ///
    /// # Errors
    /// Fails if the offload file cannot be created or written.
    pub fn zero1(
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        Self::new(ParallelKind::Zero1, inventory, team, settings, memory)
    }

    /// Creates ZeRO stage 2, which also shards gradients.
    ///
    /// # Errors
    /// Fails if the offload file cannot be created or written.
    pub fn zero2(
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        Self::new(ParallelKind::Zero2, inventory, team, settings, memory)
    }

    fn new(
        kind: ParallelKind,
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        let base = StrategyCore::new(kind, inventory, team, settings, memory)?;
        let keeps = if kind == ParallelKind::Zero1 { GradStorage::ShardInPlace } else { GradStorage::Shard };
        let (layout, rank) = (base.layout(), base.rank());
        let shares = OptimizerShards::new(inventory, &layout, memory, settings, |bucket| {
            layout.shard_range(bucket, rank)
        })?;
        let (gradients, transit) = (GradReducer::new(keeps, &base), ParamBroadcast::new(&base));
        let mut made = Self { base, shards: shares, grad_reducer: gradients, param_broadcast: transit };
        for bucket in layout.ids() {
            // Every rank computes the same initial weights, so none are sent
            // (docs/decisions/0007-strategies-hear-three-events.md).
            let weights = made.base.store.initial_weights(bucket, 0..layout[bucket].count, settings.seed)?;
            made.base.store.put_weights(bucket, weights);
            made.shards.initialize(bucket, settings.seed)?;
        }
        Ok(made)
    }

    fn start_gather(&mut self, bucket: BucketId) -> Result<()> {
        self.param_broadcast
            .start(&mut self.base, bucket, |weights, peers| weights.all_gather_in_place(peers))
    }
}

impl Strategy for Sharded {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.base.begin_step(plan);
        Ok(())
    }

    fn pre_unit(&mut self, unit: UnitId, _: Direction) -> Result<()> {
        self.param_broadcast.wait_unit(&mut self.base, unit)
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

impl DataParallel for Sharded {
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
            let (group, tensor) = (self.base.group.as_ref(), self.base.tensor.as_ref());
            let stride = StepContext { optimizer, step, group, tensor };
            self.shards.update(bucket, weights, gradients.view(), &stride)?;
            self.grad_reducer.clear_after_step(&mut self.base, bucket, gradients.buffer)?;
        }
        // Weights that forward needs first are sent first.
        // Buckets are numbered in the order of backward, so this loop is apart from the one above.
        for bucket in self.base.trainable_buckets().into_iter().rev() {
            self.start_gather(bucket)?;
        }
        Ok(())
    }

    fn wait_all(&mut self) -> Result<()> {
        self.param_broadcast.wait_all(&mut self.base)
    }

    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()> {
        // A bucket whose gather is under way is absent from the store.
        self.wait_all()?;
        for bucket in self.base.layout().ids() {
            let weights = BufferFrom { buffer: self.base.store.weights_mut(bucket), start: 0 };
            self.shards.for_each_shard(bucket, weights, visit)?;
        }
        // A pending collective may have failed.
        self.base.check()
    }

    fn broadcast_params(&mut self) -> Result<()> {
        self.base.layout().ids().rev().try_for_each(|bucket| self.start_gather(bucket))?;
        self.wait_all()
    }

    fn is_replicated(&self, _: ParameterId) -> bool {
        self.base.group.is_none()
    }

    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.shards.alloc_moments(count)
    }

    fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.base.wait_time)
    }
}
