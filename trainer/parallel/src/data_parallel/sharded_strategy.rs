//! The strategy of all kinds: a policy for weights, one for gradients, and the optimizer's state.
//!
//! Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward training trillion
//! parameter models", SC 2020.

use super::{DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, SquareSum};
use crate::bucket::BucketId;
use crate::data_parallel::grad_reducer::GradReducer;
use crate::data_parallel::optimizer_shards::{OptimizerShards, StepContext};
use crate::data_parallel::strategy_core::StrategyCore;
use crate::data_parallel::weights::{WeightPolicy, policies};
use crate::optimizer::{Optimizer, Step};
use std::sync::Arc;
use std::time::Duration;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Inventory, Parameter, ParameterId, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::{DeviceStore, Strategy};

/// Keeps of weights, gradients and optimizer state what its [`ParallelKind`] says, on the data
/// ranks of its group.
///
/// It treats all parameters alike. [`Mixed`](super::Mixed) has one such strategy for each part of a
/// model, as experts and [`Settings::replicate_below`] require. The front page of this crate has an
/// example of a step.
pub struct ShardedStrategy {
    base: StrategyCore,
    weights: Box<dyn WeightPolicy>,
    shards: OptimizerShards,
    grad_reducer: GradReducer,
}

impl ShardedStrategy {
    /// Creates the strategy of this kind, with initial weights of [`Settings::seed`]. All ranks of
    /// the groups must call this, with the same kind and settings. Flat buffers are in the memory
    /// of `memory`.
    ///
    /// # Errors
    /// - [`Error::Invalid`](unisono_nn::Error::Invalid) if [`Settings::shard_ranks`] does not
    ///   divide the data ranks.
    /// - [`Error::Unsupported`](unisono_nn::Error::Unsupported) for 16-bit moments or an offload
    ///   folder, if buffers are in GPU memory.
    /// - Otherwise if a collective fails, or the offload file cannot be created or written.
    pub fn new(
        kind: ParallelKind,
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        let mut base = StrategyCore::new(kind, inventory, team, settings, memory)?;
        let (layout, rank) = (base.layout(), base.rank());
        let is_replicated = base.kind == ParallelKind::Replicated;
        let mut shards = OptimizerShards::new(inventory, &layout, memory, settings, |bucket| {
            if is_replicated { 0..layout[bucket].count } else { layout.shard_range(bucket, rank) }
        })?;
        let (mut weights, grad_storage) = policies(&base);
        let grad_reducer = GradReducer::new(grad_storage, &base);
        for bucket in layout.ids() {
            weights.initialize(&mut base, bucket)?;
            shards.initialize(bucket, settings.seed)?;
        }
        Ok(Self { base, weights, shards, grad_reducer })
    }
}

#[cfg(test)]
impl ShardedStrategy {
    /// Returns the bytes that this rank has sent within its group, and to other groups.
    pub(crate) fn bytes_sent(&self) -> [u64; 2] {
        let group = self.base.group.as_ref().map(|group| &group.process_group);
        [group, self.base.replicas.as_ref()]
            .map(|ranks| ranks.map_or(0, |ranks| ranks.host().traffic_stats().unwrap().bytes))
    }
}

impl Strategy for ShardedStrategy {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.base.begin_step(plan);
        self.weights.begin_step(plan);
        Ok(())
    }

    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.weights.pre_unit(&mut self.base, unit, way)
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.base.store.drop_widened(unit);
        // Weights are freed before gradients are reduced, so that both are not in memory at once.
        self.weights.post_unit(&mut self.base, unit, way);
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

    fn device_store(&self, _: ParameterId) -> Option<&dyn DeviceStore> {
        let store = &self.base.store;
        store.is_on_device().then_some(store as &dyn DeviceStore)
    }

    fn device_store_mut(&mut self, _: ParameterId) -> Option<&mut dyn DeviceStore> {
        let store = &mut self.base.store;
        store.is_on_device().then_some(store as &mut dyn DeviceStore)
    }
}

impl DataParallel for ShardedStrategy {
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
        // A gather under way may share this rank's shard with the thread that sends it, so the step
        // below must not change the shard yet.
        self.wait_all()?;
        for bucket in self.base.trainable_buckets() {
            let gradients = self.grad_reducer.take_gradients(&mut self.base, bucket)?;
            // If every rank keeps whole matrices, the step of a whole matrix gathers nothing.
            let group = self.base.group.as_ref().filter(|_| self.base.kind != ParallelKind::Replicated);
            let stride = StepContext { optimizer, step, group, tensor: self.base.tensor.as_ref() };
            let weights = self.weights.kept(&mut self.base.store, bucket);
            self.shards.update(bucket, weights, gradients.view(), &stride)?;
            self.grad_reducer.clear_after_step(&mut self.base, bucket, gradients.buffer)?;
        }
        // Buckets are numbered in the order of backward, and forward needs the last of them first.
        // So this is apart from the loop above.
        let changed: Vec<BucketId> = self.base.trainable_buckets().into_iter().rev().collect();
        self.weights.send_changed(&mut self.base, &changed)
    }

    fn wait_all(&mut self) -> Result<()> {
        self.weights.wait_all(&mut self.base)
    }

    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()> {
        // A bucket whose exchange is under way is absent from the store.
        self.wait_all()?;
        for bucket in self.base.layout().ids() {
            let weights = self.weights.kept(&mut self.base.store, bucket);
            self.shards.for_each_shard(bucket, weights, visit)?;
        }
        // A pending collective may have failed.
        self.base.check()
    }

    fn broadcast_params(&mut self) -> Result<()> {
        let buckets: Vec<BucketId> = self.base.layout().ids().rev().collect();
        self.weights.send_changed(&mut self.base, &buckets)?;
        self.wait_all()
    }

    fn is_copy(&self, _: ParameterId) -> bool {
        self.base.is_copy()
    }

    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.shards.alloc_moments(count)
    }

    fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.base.wait_time)
    }
}
