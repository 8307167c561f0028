//! Distribution of updated weights to ranks that keep whole weights.

use crate::error::Result;
use crate::flat::{BucketId, FlatBuffer};
use crate::parallel::pending_collective::PendingCollective;
use crate::parallel::strategy_core::StrategyCore;
use crate::parameter::UnitId;
use crate::process_group::Comm;

/// Pending exchanges by bucket. A bucket is out of the store until its exchange is complete.
pub(super) struct ParamBroadcast(Vec<Option<PendingCollective>>);

impl ParamBroadcast {
    pub(super) fn new(base: &StrategyCore) -> Self {
        Self(base.store.layout.ids().map(|_| None).collect())
    }

    /// Starts `exchange`, which sends the weights of a bucket to every rank.
    pub(super) fn start(
        &mut self,
        base: &mut StrategyCore,
        bucket: BucketId,
        exchange: impl FnOnce(&mut FlatBuffer, Comm<'_>) -> unisono::Result<()> + Send + 'static,
    ) -> Result<()> {
        // Outside of the store, weights that are half received cannot be used by mistake.
        let weights = base.store.take_weights(bucket).expect("whole");
        let operation = move |peers: Option<Comm<'_>>, mut weights: FlatBuffer| {
            peers.map_or(Ok(()), |peers| exchange(&mut weights, peers))?;
            Ok(weights)
        };
        self.0[bucket.0] = Some(PendingCollective::start(base.group.as_ref(), weights, operation)?);
        Ok(())
    }

    /// Waits for the weights of a unit and opens the unit.
    pub(super) fn wait_unit(&mut self, base: &mut StrategyCore, unit: UnitId) -> Result<()> {
        // Weights of later units may still be under way, because forward does not need them yet.
        for bucket in base.layout().buckets_of(&base.store.inventory, unit) {
            self.wait_bucket(base, bucket)?;
        }
        base.store.widen_unit(unit)
    }

    /// Waits for all weights.
    pub(super) fn wait_all(&mut self, base: &mut StrategyCore) -> Result<()> {
        base.layout().ids().try_for_each(|bucket| self.wait_bucket(base, bucket))?;
        base.check()
    }

    fn wait_bucket(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        if let Some(flight) = self.0[bucket.0].take() {
            let weights = flight.wait(&mut base.wait_time)?;
            base.store.put_weights(bucket, weights);
        }
        Ok(())
    }
}
