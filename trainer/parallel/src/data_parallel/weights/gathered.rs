//! Whole weights on every rank, of which each rank updates a shard and gathers the others after the
//! step.

use super::WeightPolicy;
use crate::bucket::{BucketId, FlatBuffer, ParamStore};
use crate::data_parallel::optimizer_shards::BufferFrom;
use crate::data_parallel::pending_collective::PendingCollective;
use crate::data_parallel::strategy_core::StrategyCore;
use unisono_nn::error::Result;
use unisono_nn::parameter::UnitId;
use unisono_nn::process_group::Comm;
use unisono_nn::step_plan::Direction;

/// Pending gathers by bucket. A bucket is out of the store until its gather is complete.
pub(super) struct Gathered(Vec<Option<PendingCollective>>);

impl Gathered {
    pub(super) fn new(base: &StrategyCore) -> Self {
        Self(base.store.layout.ids().map(|_| None).collect())
    }

    fn start_gather(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        // Outside of the store, weights that are half received cannot be used by mistake.
        let weights = base.store.take_weights(bucket).expect("whole");
        let operation = move |peers: Option<Comm<'_>>, mut weights: FlatBuffer| {
            peers.map_or(Ok(()), |peers| weights.all_gather_in_place(peers))?;
            Ok(weights)
        };
        self.0[bucket.0] = Some(PendingCollective::start(base.group.as_ref(), weights, operation)?);
        Ok(())
    }

    fn wait_bucket(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        if let Some(flight) = self.0[bucket.0].take() {
            let weights = flight.wait(&mut base.wait_time)?;
            base.store.put_weights(bucket, weights);
        }
        Ok(())
    }
}

impl WeightPolicy for Gathered {
    fn initialize(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        // Every rank computes the same initial weights, so none are sent
        // (docs/decisions/0007-strategies-hear-three-events.md).
        let count = base.store.layout[bucket].count;
        let weights = base.store.initial_weights(bucket, 0..count, base.settings.seed)?;
        base.store.put_weights(bucket, weights);
        Ok(())
    }

    fn pre_unit(&mut self, base: &mut StrategyCore, unit: UnitId, _: Direction) -> Result<()> {
        // Weights of later units may still be under way, because forward does not need them yet.
        for bucket in base.layout().buckets_of(&base.store.inventory, unit) {
            self.wait_bucket(base, bucket)?;
        }
        base.store.widen_unit(unit)
    }

    fn wait_all(&mut self, base: &mut StrategyCore) -> Result<()> {
        base.layout().ids().try_for_each(|bucket| self.wait_bucket(base, bucket))?;
        base.check()
    }

    fn kept<'a>(&'a mut self, store: &'a mut ParamStore, bucket: BucketId) -> BufferFrom<&'a mut FlatBuffer> {
        BufferFrom { buffer: store.weights_mut(bucket), start: 0 }
    }

    fn send_changed(&mut self, base: &mut StrategyCore, buckets: &[BucketId]) -> Result<()> {
        buckets.iter().try_for_each(|&bucket| self.start_gather(base, bucket))
    }
}
