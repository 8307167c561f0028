//! ZeRO stage 3: each rank keeps a shard of all state, and gathers a unit's weights for its use.
//!
//! Sources: Rajbhandari et al., "ZeRO", SC 2020. Prefetch, its limit and resharding follow Zhao et
//! al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 16(12), 2023.

use crate::allocator::{AllocClass, Allocator};
use crate::error::Result;
use crate::flat::{BucketId, FlatBuffer, ParamStore};
use crate::optim::{Optimizer, Step};
use crate::parallel::grad_reducer::{GradReducer, GradStorage};
use crate::parallel::optimizer_shards::{BufferFrom, OptimizerShards, StepContext};
use crate::parallel::pending_collective::PendingCollective;
use crate::parallel::strategy_core::StrategyCore;
use crate::parallel::{DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, SquareSum};
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::process_group::Comm;
use crate::step_plan::{Direction, StepPlan};
use crate::strategy::Strategy;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Keeps weights, gradients and optimizer state in shards. The model may exceed the memory of one
/// rank, because initial weights are also computed by shard.
pub struct FullySharded {
    base: StrategyCore,
    shards: OptimizerShards,
    /// This rank's shard of each bucket's weights, shared with a pending gather.
    weights: Vec<Arc<FlatBuffer>>,
    grad_reducer: GradReducer,
    /// Pending gathers of whole weights, in request order.
    gathers: VecDeque<(BucketId, PendingCollective)>,
    /// Number of open units that use each bucket.
    use_counts: Vec<usize>,
    cursor: PlanCursor,
}

/// Uses of weights in a step, and the next one of them.
#[derive(Default)]
struct PlanCursor {
    uses: Vec<(UnitId, Direction)>,
    next: usize,
}

impl PlanCursor {
    fn new(plan: &StepPlan) -> Self {
        Self { uses: plan.weight_uses().collect(), next: 0 }
    }

    /// Moves behind this use. A use that is not planned ends the plan.
    fn arrive(&mut self, unit: UnitId, way: Direction) {
        let ahead = self.uses[self.next..].iter().position(|&planned| planned == (unit, way));
        self.next = ahead.map_or(self.uses.len(), |ahead| self.next + ahead + 1);
    }

    /// Returns the units of the uses that follow, in order.
    fn upcoming(&self) -> impl Iterator<Item = UnitId> + '_ {
        self.uses[self.next..].iter().map(|&(unit, _)| unit)
    }
}

impl FullySharded {
    /// Creates the strategy with one bucket per unit of the model.
    ///
    /// # Errors
    /// Fails if the offload file cannot be created or written.
    pub fn new(
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        let base = StrategyCore::new(ParallelKind::Zero3, inventory, team, settings, memory)?;
        let (layout, rank) = (base.layout(), base.rank());
        let mut shares = OptimizerShards::new(inventory, &layout, memory, settings, |bucket| {
            layout.shard_range(bucket, rank)
        })?;
        let initial = |bucket| {
            shares.initialize(bucket, settings.seed)?;
            base.store.initial_weights(bucket, layout.shard_range(bucket, rank), settings.seed).map(Arc::new)
        };
        let weights = layout.ids().map(initial).collect::<Result<_>>()?;
        let gradients = GradReducer::new(GradStorage::Shard, &base);
        let users = vec![0; layout.buckets.len()];
        Ok(Self {
            base,
            shards: shares,
            weights,
            grad_reducer: gradients,
            gathers: VecDeque::new(),
            use_counts: users,
            cursor: PlanCursor::default(),
        })
    }

    fn buckets_of(&self, unit: UnitId) -> Vec<BucketId> {
        self.base.store.layout.buckets_of(&self.base.store.inventory, unit)
    }

    /// Returns true if a bucket's weights are complete or being gathered.
    fn is_pending(&self, bucket: BucketId) -> bool {
        self.base.store.bucket_weights(bucket).is_some()
            || self.gathers.iter().any(|(coming, _)| *coming == bucket)
    }

    fn start_gather(&mut self, bucket: BucketId) -> Result<()> {
        // The shard is shared with the thread that sends it and not copied: nothing changes it
        // before `wait_all`.
        let (share, store) = (Arc::clone(&self.weights[bucket.0]), &self.base.store);
        let count = store.layout[bucket].count;
        let weights = FlatBuffer::new(&store.memory, AllocClass::Weights, share.dtype(), count)?;
        let gather = move |peers: Option<Comm<'_>>, mut weights: FlatBuffer| {
            match peers {
                Some(peers) => weights.all_gather(&share, peers)?,
                None => weights.copy_from(&share)?,
            }
            Ok(weights)
        };
        let flight = PendingCollective::start(self.base.group.as_ref(), weights, gather)?;
        self.gathers.push_back((bucket, flight));
        Ok(())
    }

    /// Waits until the pending gather of a bucket is complete.
    fn wait_weights(&mut self, bucket: BucketId) -> Result<()> {
        while self.base.store.bucket_weights(bucket).is_none() {
            // A communicator runs its operations in order, so gathers before this one end before
            // it. Their weights are stored as well, because the units that requested them come
            // later.
            let (landed, flight) = self.gathers.pop_front().expect("it is coming");
            // On a GPU, `wait` only orders streams. The host waits here, as it would otherwise
            // allocate the weights of all units before the GPU reaches the first
            // (docs/decisions/0015-training-on-the-device.md).
            flight.synchronize()?;
            let weights = flight.wait(&mut self.base.wait_time)?;
            self.base.store.put_weights(landed, weights);
        }
        self.base.check()
    }

    /// Starts gathers for the units that are used after `unit`.
    fn prefetch(&mut self, unit: UnitId) -> Result<()> {
        let mut last = unit;
        // Consecutive uses of a unit share one gather, as forward and backward of the last unit do.
        // They count as one unit, so that the prefetch reaches as far at the turn as elsewhere.
        let others = self.cursor.upcoming().filter(|&next| std::mem::replace(&mut last, next) != next);
        let others: Vec<_> = others.take(self.base.settings.prefetch).collect();
        for next in others {
            for bucket in self.buckets_of(next) {
                // A gather beyond the limit is left out and not waited for: the visit of its unit
                // starts it at the latest, and waiting here would hold up the unit that computes
                // next.
                if self.gathers.len() < self.base.settings.max_pending_gathers && !self.is_pending(bucket) {
                    self.start_gather(bucket)?;
                }
            }
        }
        Ok(())
    }

    /// Frees buckets that no open unit uses.
    fn release_unit(&mut self, unit: UnitId, frees: bool) {
        for bucket in self.buckets_of(unit) {
            self.use_counts[bucket.0] -= 1;
            if frees && self.use_counts[bucket.0] == 0 {
                self.base.store.take_weights(bucket);
            }
        }
    }
}

impl Strategy for FullySharded {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.base.begin_step(plan);
        self.cursor = PlanCursor::new(plan);
        Ok(())
    }

    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        let buckets = self.buckets_of(unit);
        // The gathers of this unit start before those of later units, because a communicator runs
        // its operations in order. Those start before the wait, so that they run while this unit
        // computes.
        for &bucket in &buckets {
            self.use_counts[bucket.0] += 1;
            if !self.is_pending(bucket) {
                self.start_gather(bucket)?;
            }
        }
        // The prefetch looks ahead of this use, so the cursor moves first.
        self.cursor.arrive(unit, way);
        self.prefetch(unit)?;
        buckets.into_iter().try_for_each(|bucket| self.wait_weights(bucket))?;
        self.base.store.widen_unit(unit)
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.base.store.drop_widened(unit);
        // Backward begins with the unit with which forward ends. Its weights stay, because freeing
        // them would gather them again at once.
        let keeps = way == Direction::Forward && !self.base.settings.reshard_after_forward;
        self.release_unit(unit, !keeps && self.cursor.upcoming().next() != Some(unit));
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

impl DataParallel for FullySharded {
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
        // A gather under way shares this rank's shard with the thread that sends it, so the step
        // below must not change the shard yet.
        self.wait_all()?;
        for bucket in self.base.trainable_buckets() {
            let gradients = self.grad_reducer.take_gradients(&mut self.base, bucket)?;
            let share = Arc::get_mut(&mut self.weights[bucket.0]).expect("nothing is under way");
            let weights = BufferFrom { buffer: share, start: gradients.start };
            let (group, tensor) = (self.base.group.as_ref(), self.base.tensor.as_ref());
            let stride = StepContext { optimizer, step, group, tensor };
            self.shards.update(bucket, weights, gradients.view(), &stride)?;
            self.grad_reducer.clear_after_step(&mut self.base, bucket, gradients.buffer)?;
        }
        Ok(())
    }

    fn wait_all(&mut self) -> Result<()> {
        // The gathered weights are dropped, and so are those in the store: a step or a checkpoint
        // changes the shards, so that they would be stale.
        while let Some((_, flight)) = self.gathers.pop_front() {
            flight.wait(&mut self.base.wait_time)?;
        }
        for bucket in self.base.layout().ids() {
            self.base.store.take_weights(bucket);
        }
        self.base.check()
    }

    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()> {
        self.wait_all()?;
        for bucket in self.base.layout().ids() {
            let start = self.shards.range(bucket).start;
            let share = Arc::get_mut(&mut self.weights[bucket.0]).expect("nothing is under way");
            self.shards.for_each_shard(bucket, BufferFrom { buffer: share, start }, visit)?;
        }
        // A pending collective may have failed.
        self.base.check()
    }

    fn broadcast_params(&mut self) -> Result<()> {
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
