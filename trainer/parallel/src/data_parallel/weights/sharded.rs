//! Shards of weights on each rank, which gathers a unit's weights for its use.
//!
//! Sources: Rajbhandari et al., "ZeRO", SC 2020. Prefetch, its limit and resharding follow Zhao et
//! al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 16(12), 2023.

use super::WeightPolicy;
use crate::bucket::{BucketId, FlatBuffer, ParamStore};
use crate::data_parallel::optimizer_shards::BufferFrom;
use crate::data_parallel::pending_collective::PendingCollective;
use crate::data_parallel::strategy_core::StrategyCore;
use std::collections::VecDeque;
use std::sync::Arc;
use unisono_nn::allocator::AllocClass;
use unisono_nn::error::Result;
use unisono_nn::parameter::UnitId;
use unisono_nn::process_group::Comm;
use unisono_nn::step_plan::{Direction, StepPlan};

/// Keeps a shard of each bucket. The model may exceed the memory of one rank, because initial
/// weights are also computed by shard.
pub(super) struct Sharded {
    rank: usize,
    /// This rank's shard of each bucket's weights, shared with a pending gather.
    shards: Vec<Arc<FlatBuffer>>,
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

impl Sharded {
    pub(super) fn new(base: &StrategyCore) -> Self {
        Self {
            rank: base.rank(),
            shards: Vec::new(),
            gathers: VecDeque::new(),
            use_counts: vec![0; base.store.layout.buckets.len()],
            cursor: PlanCursor::default(),
        }
    }

    /// Returns true if a bucket's weights are complete or being gathered.
    fn is_pending(&self, store: &ParamStore, bucket: BucketId) -> bool {
        store.bucket_weights(bucket).is_some() || self.gathers.iter().any(|(coming, _)| *coming == bucket)
    }

    fn start_gather(&mut self, base: &StrategyCore, bucket: BucketId) -> Result<()> {
        // The shard is shared with the thread that sends it and not copied: nothing changes it
        // before `wait_all`.
        let (shard, store) = (Arc::clone(&self.shards[bucket.0]), &base.store);
        let count = store.layout[bucket].count;
        let weights = FlatBuffer::new(&store.memory, AllocClass::Weights, shard.dtype(), count)?;
        let gather = move |peers: Option<Comm<'_>>, mut weights: FlatBuffer| {
            match peers {
                Some(peers) => weights.all_gather(&shard, peers)?,
                None => weights.copy_from(&shard)?,
            }
            Ok(weights)
        };
        let flight = PendingCollective::start(base.group.as_ref(), weights, gather)?;
        self.gathers.push_back((bucket, flight));
        Ok(())
    }

    /// Waits until the pending gather of a bucket is complete.
    fn wait_weights(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        while base.store.bucket_weights(bucket).is_none() {
            // A communicator runs its operations in order, so gathers before this one end before
            // it. Their weights are stored as well, because the units that requested them come
            // later.
            let (landed, flight) = self.gathers.pop_front().expect("it is coming");
            // On a GPU, `wait` only orders streams. The host waits here, as it would otherwise
            // allocate the weights of all units before the GPU reaches the first
            // (docs/decisions/0015-training-on-the-device.md).
            flight.synchronize()?;
            let weights = flight.wait(&mut base.wait_time)?;
            base.store.put_weights(landed, weights);
        }
        base.check()
    }

    /// Starts gathers for the units that are used after `unit`.
    fn prefetch(&mut self, base: &StrategyCore, unit: UnitId) -> Result<()> {
        let mut last = unit;
        // Consecutive uses of a unit share one gather, as forward and backward of the last unit do.
        // They count as one unit, so that the prefetch reaches as far at the turn as elsewhere.
        let others = self.cursor.upcoming().filter(|&next| std::mem::replace(&mut last, next) != next);
        let others: Vec<_> = others.take(base.settings.prefetch).collect();
        for next in others {
            for bucket in buckets_of(base, next) {
                // A gather beyond the limit is left out and not waited for: the visit of its unit
                // starts it at the latest, and waiting here would hold up the unit that computes
                // next.
                if self.gathers.len() < base.settings.max_pending_gathers
                    && !self.is_pending(&base.store, bucket)
                {
                    self.start_gather(base, bucket)?;
                }
            }
        }
        Ok(())
    }
}

impl WeightPolicy for Sharded {
    fn initialize(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        let range = base.store.layout.shard_range(bucket, self.rank);
        let shard = base.store.initial_weights(bucket, range, base.settings.seed)?;
        self.shards.push(Arc::new(shard));
        Ok(())
    }

    fn begin_step(&mut self, plan: &StepPlan) {
        self.cursor = PlanCursor::new(plan);
    }

    fn pre_unit(&mut self, base: &mut StrategyCore, unit: UnitId, way: Direction) -> Result<()> {
        let buckets = buckets_of(base, unit);
        // The gathers of this unit start before those of later units, because a communicator runs
        // its operations in order. Those start before the wait, so that they run while this unit
        // computes.
        for &bucket in &buckets {
            self.use_counts[bucket.0] += 1;
            if !self.is_pending(&base.store, bucket) {
                self.start_gather(base, bucket)?;
            }
        }
        // The prefetch looks ahead of this use, so the cursor moves first.
        self.cursor.arrive(unit, way);
        self.prefetch(base, unit)?;
        buckets.into_iter().try_for_each(|bucket| self.wait_weights(base, bucket))?;
        base.store.widen_unit(unit)
    }

    fn post_unit(&mut self, base: &mut StrategyCore, unit: UnitId, way: Direction) {
        // Backward begins with the unit with which forward ends. Its weights stay, because freeing
        // them would gather them again at once.
        let keeps = way == Direction::Forward && !base.settings.reshard_after_forward;
        let frees = !keeps && self.cursor.upcoming().next() != Some(unit);
        for bucket in buckets_of(base, unit) {
            self.use_counts[bucket.0] -= 1;
            // Another open unit may use the bucket, too.
            if frees && self.use_counts[bucket.0] == 0 {
                base.store.take_weights(bucket);
            }
        }
    }

    fn wait_all(&mut self, base: &mut StrategyCore) -> Result<()> {
        // The gathered weights are dropped, and so are those in the store: a step or a checkpoint
        // changes the shards, so that they would be stale.
        while let Some((_, flight)) = self.gathers.pop_front() {
            flight.wait(&mut base.wait_time)?;
        }
        for bucket in base.layout().ids() {
            base.store.take_weights(bucket);
        }
        base.check()
    }

    fn kept<'a>(&'a mut self, store: &'a mut ParamStore, bucket: BucketId) -> BufferFrom<&'a mut FlatBuffer> {
        let start = store.layout.shard_range(bucket, self.rank).start;
        let buffer = Arc::get_mut(&mut self.shards[bucket.0]).expect("nothing is under way");
        BufferFrom { buffer, start }
    }
}

fn buckets_of(base: &StrategyCore, unit: UnitId) -> Vec<BucketId> {
    base.store.layout.buckets_of(&base.store.inventory, unit)
}
