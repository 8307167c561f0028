//! Reduces gradients bucket by bucket, in order, and keeps the results whole or in shards until the
//! step.

use crate::bucket::{BucketId, FlatBuffer};
use crate::data_parallel::optimizer_shards::{BufferFrom, OptimizerShards};
use crate::data_parallel::pending_collective::PendingCollective;
use crate::data_parallel::strategy_core::StrategyCore;
use crate::data_parallel::{GradAverager, SquareSum};
use std::collections::VecDeque;
use unisono_nn::error::Result;
use unisono_nn::parameter::{ParameterId, UnitId};
use unisono_nn::process_group::Comm;
use unisono_nn::step_plan::Direction;

/// Storage of the mean gradients of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GradStorage {
    /// Keeps whole buckets.
    Full,
    /// Keeps the rank's shard in place, inside whole buckets that stay allocated.
    ShardInPlace,
    /// Keeps the rank's shard, and frees whole buckets after reduction.
    Shard,
}

/// Reductions of one rank's gradients, and their results.
pub(super) struct GradReducer {
    storage: GradStorage,
    /// This rank's shards of the mean gradients by bucket, with [`GradStorage::Shard`].
    shards: Vec<Option<FlatBuffer>>,
    pending: VecDeque<(BucketId, PendingCollective)>,
}

impl GradReducer {
    pub(super) fn new(keeps: GradStorage, base: &StrategyCore) -> Self {
        let shares = base.store.layout.ids().map(|_| None).collect();
        Self { storage: keeps, shards: shares, pending: VecDeque::new() }
    }

    /// Records one use of a parameter in backward, and starts the reductions that become due.
    pub(super) fn grad_ready(&mut self, base: &mut StrategyCore, id: ParameterId) -> Result<()> {
        base.mark_ready(id)?;
        self.start_complete(base)
    }

    /// Records the end of a unit's visit, and starts the reductions that become due.
    pub(super) fn end_visit(
        &mut self,
        base: &mut StrategyCore,
        unit: UnitId,
        direction: Direction,
    ) -> Result<()> {
        if direction == Direction::Forward {
            return Ok(());
        }
        base.end_visit(unit)?;
        self.start_complete(base)
    }

    fn start_complete(&mut self, base: &mut StrategyCore) -> Result<()> {
        // One gradient can make several buckets due. All ranks start buckets in the order of the
        // plan, so a bucket that was complete before may have waited for this one.
        while let Some(bucket) = base.next_complete_bucket() {
            self.start_reduction(base, bucket)?;
        }
        Ok(())
    }

    /// Ends backward: reduces the remaining buckets and waits for all reductions.
    pub(super) fn finish(&mut self, base: &mut StrategyCore) -> Result<()> {
        // Buckets without gradients on this rank are reduced as well, because other ranks may have
        // some.
        while let Some(bucket) = base.next_remaining_bucket()? {
            self.start_reduction(base, bucket)?;
        }
        self.wait_all(base)
    }

    fn start_reduction(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        // With shards, a whole bucket exists only from its first gradient to its reduction, so the
        // number of reductions under way decides the peak of memory. The other ways keep whole
        // buckets in any case.
        let most = if self.storage == GradStorage::Shard {
            // A limit of 0 would let the loop below run forever, because nothing is pending that
            // could end.
            base.settings.max_pending_reductions.max(1)
        } else {
            usize::MAX
        };
        while self.pending.len() >= most {
            // On a GPU, the wait below only orders streams. Without this one, the host would
            // allocate all buckets of backward before the GPU reaches the first
            // (docs/decisions/0015-training-on-the-device.md).
            self.pending.front().map_or(Ok(()), |(_, flight)| flight.synchronize())?;
            self.wait_first(base)?;
        }
        let reduce = match self.storage {
            GradStorage::Full => GradAverager::all_reduce,
            GradStorage::ShardInPlace => GradAverager::reduce_scatter_in_place,
            GradStorage::Shard => GradAverager::reduce_scatter,
        };
        let gradients = base.store.take_gradients(bucket)?;
        let (mean, partial) = (base.averager.clone(), base.partial_grads(bucket));
        let reduction = move |peers: Option<Comm<'_>>, mut gradients: FlatBuffer| {
            // Partial sums come first, because their ranges are those of the whole bucket, of which
            // a `reduce_scatter` leaves only a shard.
            partial.all_reduce(&mut gradients)?;
            reduce(&mean, peers, gradients)
        };
        let flight = PendingCollective::start(base.group.as_ref(), gradients, reduction)?;
        self.pending.push_back((bucket, flight));
        Ok(())
    }

    fn wait_all(&mut self, base: &mut StrategyCore) -> Result<()> {
        while !self.pending.is_empty() {
            self.wait_first(base)?;
        }
        Ok(())
    }

    /// Waits for the oldest reduction. A shard is added to the shard of earlier micro-batches.
    fn wait_first(&mut self, base: &mut StrategyCore) -> Result<()> {
        let Some((bucket, flight)) = self.pending.pop_front() else { return Ok(()) };
        let reduced = flight.wait(&mut base.wait_time)?;
        match &mut self.shards[bucket.0] {
            _ if self.storage != GradStorage::Shard => base.store.put_gradients(bucket, reduced),
            Some(sum) => sum.add(&reduced)?,
            none => *none = Some(reduced),
        }
        Ok(())
    }

    /// Takes the buffer with this rank's gradients of a bucket; zeros if there are none.
    pub(super) fn take_gradients(
        &mut self,
        base: &mut StrategyCore,
        bucket: BucketId,
    ) -> Result<BufferFrom<FlatBuffer>> {
        if self.storage != GradStorage::Shard {
            return Ok(BufferFrom { buffer: base.store.take_gradients(bucket)?, start: 0 });
        }
        // A bucket without gradients still takes part in the step, because momentum and weight
        // decay move its weights.
        let share = base.store.layout.shard_range(bucket, base.rank());
        let numbers = self.shards[bucket.0].take().map(Ok);
        let numbers = numbers.unwrap_or_else(|| base.store.zero_gradients(bucket, share.len()))?;
        Ok(BufferFrom { buffer: numbers, start: share.start })
    }

    fn put_gradients(&mut self, base: &mut StrategyCore, bucket: BucketId, gradients: FlatBuffer) {
        match self.storage {
            GradStorage::Shard => self.shards[bucket.0] = Some(gradients),
            GradStorage::Full | GradStorage::ShardInPlace => base.store.put_gradients(bucket, gradients),
        }
    }

    /// Releases `gradients` after the step: whole buckets are cleared, shards are freed.
    pub(super) fn clear_after_step(
        &mut self,
        base: &mut StrategyCore,
        bucket: BucketId,
        mut gradients: FlatBuffer,
    ) -> Result<()> {
        if self.storage != GradStorage::Shard {
            // Modules add to whole buckets, which must therefore be zero before the next backward.
            // A shard needs no zeros, because the first reduction of the next step assigns it.
            gradients.zero()?;
            base.store.put_gradients(bucket, gradients);
        }
        Ok(())
    }

    /// Returns the sum of squares of the gradients that the data parallel group holds.
    pub(super) fn square_sum(
        &mut self,
        base: &mut StrategyCore,
        shares: &OptimizerShards,
    ) -> Result<SquareSum> {
        let (mut squares, layout) = (SquareSum::new(&base.store.memory), base.layout());
        for bucket in base.trainable_buckets() {
            let range = match self.storage {
                GradStorage::Full => 0..layout[bucket].count,
                // Outside of its shard, the buffer of a `reduce_scatter` in place holds no sums.
                GradStorage::ShardInPlace | GradStorage::Shard => layout.shard_range(bucket, base.rank()),
            };
            let gradients = self.take_gradients(base, bucket)?;
            shares.add_squares(
                bucket,
                range,
                gradients.view(),
                |id| base.counted_in_norm(id),
                &mut squares,
            )?;
            self.put_gradients(base, bucket, gradients.buffer);
        }
        // With whole gradients, every rank has the squares of all elements already, and a sum over
        // ranks would count each of them once per rank.
        if self.storage != GradStorage::Full {
            base.sum_over_shards(&mut squares)?;
        }
        base.sum_over_experts(&mut squares)?;
        Ok(squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_parallel::{ParallelKind, ProcessGroups, Settings};
    use std::sync::Arc;
    use unisono_nn::allocator::Allocator;
    use unisono_nn::device::Device;
    use unisono_nn::parameter::{Init, Parameter, Registry};
    use unisono_nn::step_plan::StepPlan;
    use unisono_nn::testing::{gpu, run_ranks};

    /// Returns the number of collectives enqueued on a GPU when each of three gradients becomes
    /// ready, the last one first.
    fn collectives_enqueued(bucket_bytes: usize) -> Vec<usize> {
        let mut registry = Registry::default();
        for name in ["one", "two", "three"] {
            registry.unit(name, |r| r.add(Parameter::new("weight", &[8, 8], Init::Normal(0.5))));
        }
        let inventory = Arc::new(registry.finish());
        let counts = run_ranks(2, |group| {
            let memory = Allocator::default();
            let device = Device::new(&gpu(), &memory).unwrap();
            let settings = Settings { bucket_bytes, ..Settings::default() };
            let (team, memory) = (ProcessGroups::data_only(Some(group)), memory.with_lane(device.compute()));
            let mut base =
                StrategyCore::new(ParallelKind::Replicated, &inventory, team, &settings, &memory).unwrap();
            let mut gradients = GradReducer::new(GradStorage::Full, &base);
            base.begin_step(&StepPlan::depth_first(3, 1));
            let ready = |id| {
                gradients.grad_ready(&mut base, ParameterId(id)).unwrap();
                gradients.pending.len()
            };
            let counts: Vec<_> = [2, 1, 0].map(ready).to_vec();
            gradients.finish(&mut base).unwrap();
            device.compute().stream().synchronize().unwrap();
            counts
        });
        assert_eq!(counts[0], counts[1]);
        counts[0].clone()
    }

    #[test]
    fn gpu_collectives_are_enqueued_during_backward() {
        let bucket_bytes = 4 * 64;
        assert_eq!(collectives_enqueued(bucket_bytes), [1, 2, 3]);
        assert_eq!(collectives_enqueued(2 * bucket_bytes), [0, 1, 2]);
    }
}
