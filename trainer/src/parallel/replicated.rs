//! Data parallelism: every rank keeps the whole model.
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020. With owners: stage 1 of
//! Rajbhandari et al., "ZeRO", SC 2020, by whole parameters.

use super::{DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, SquareSum};
use crate::allocator::Allocator;
use crate::error::Result;
use crate::flat::{BucketId, Layout, ParamStore};
use crate::optim::{Optimizer, Step};
use crate::parallel::grad_reducer::{GradReducer, GradStorage};
use crate::parallel::optimizer_shards::{BufferFrom, OptimizerShards, StepContext};
use crate::parallel::param_broadcast::ParamBroadcast;
use crate::parallel::strategy_core::StrategyCore;
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::{Direction, StepPlan, Strategy};
use std::sync::Arc;
use std::time::Duration;

/// Keeps whole weights and gradients on every rank. The settings choose how gradients are reduced.
pub struct Replicated {
    base: StrategyCore,
    shards: OptimizerShards,
    /// Owner of each bucket's optimizer state; `None` if every rank keeps it.
    owners: Option<Vec<usize>>,
    grad_reducer: GradReducer,
    /// Pending broadcasts of weights from their owners.
    param_broadcast: ParamBroadcast,
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
        Self::new_with_owners(ParallelKind::Replicated, inventory, team, settings, memory)
    }

    /// Creates a strategy in which one owner keeps the optimizer state of each parameter, takes its
    /// step, and broadcasts the weights. Three times the size of the parameters is sent; shards
    /// need two ([`Sharded`](super::Sharded)).
    ///
    /// # Errors
    /// Returns the error of a failed broadcast.
    pub fn with_owners(
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        Self::new_with_owners(ParallelKind::Zero1Parameters, inventory, team, settings, memory)
    }

    fn new_with_owners(
        kind: ParallelKind,
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        let base = StrategyCore::new(kind, inventory, team, settings, memory)?;
        let (layout, rank, ranks) = (base.layout(), base.rank(), base.size());
        let owners = (kind == ParallelKind::Zero1Parameters).then(|| assign_owners(&layout, ranks));
        let is_kept = |bucket: BucketId| owners.as_ref().is_none_or(|owners| owners[bucket.0] == rank);
        let range = |bucket| if is_kept(bucket) { 0..layout[bucket].count } else { 0..0 };
        let shares = OptimizerShards::new(inventory, &layout, memory, settings, range)?;
        let (gradients, transit) = (GradReducer::new(GradStorage::Full, &base), ParamBroadcast::new(&base));
        let mut made =
            Self { base, shards: shares, owners, grad_reducer: gradients, param_broadcast: transit };
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

    /// Starts the broadcast of a bucket's weights from its owner.
    fn broadcast_from_owner(&mut self, bucket: BucketId) -> Result<()> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let owner = owners[bucket.0];
        self.param_broadcast
            .start(&mut self.base, bucket, move |weights, peers| weights.broadcast(peers, owner))
    }
}

impl Strategy for Replicated {
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
            let (group, tensor) = (None, self.base.tensor.as_ref());
            let stride = StepContext { optimizer, step, group, tensor };
            self.shards.update(bucket, weights, gradients.view(), &stride)?;
            self.grad_reducer.clear_after_step(&mut self.base, bucket, gradients.buffer)?;
            self.broadcast_from_owner(bucket)?;
        }
        Ok(())
    }

    fn wait_all(&mut self) -> Result<()> {
        self.param_broadcast.wait_all(&mut self.base)
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
        self.base.layout().ids().try_for_each(|bucket| self.broadcast_from_owner(bucket))?;
        self.wait_all()
    }

    fn is_replicated(&self, _: ParameterId) -> bool {
        self.owners.is_none()
    }

    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.shards.alloc_moments(count)
    }

    fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.base.wait_time)
    }
}

/// Assigns an owner to each bucket: the largest bucket first, each to the rank with the least load.
pub(crate) fn assign_owners(layout: &Layout, ranks: usize) -> Vec<usize> {
    let mut order: Vec<_> = layout.ids().collect();
    order.sort_by_key(|&bucket| std::cmp::Reverse(layout[bucket].count));
    let (mut owners, mut loads) = (vec![0; order.len()], vec![0; ranks]);
    for bucket in order {
        let owner = (0..ranks).min_by_key(|&rank| loads[rank]).expect("there are ranks");
        loads[owner] += layout[bucket].count;
        owners[bucket.0] = owner;
    }
    owners
}
