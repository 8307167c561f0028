//! Whole weights that are kept at every rank, on their way from those who changed them.

use crate::error::Result;
use crate::flat::{BucketId, Comm, FlatBuffer};
use crate::parallel::pending_collective::PendingCollective;
use crate::parallel::strategy_core::StrategyCore;
use crate::parameter::UnitId;

/// Buckets on their way: out of the store until somebody needs them.
pub(super) struct ParamBroadcast(Vec<Option<PendingCollective>>);

impl ParamBroadcast {
    pub(super) fn new(base: &StrategyCore) -> Self {
        Self(base.store.layout.ids().map(|_| None).collect())
    }

    /// Starts `exchange`, which gives every rank the weights of a bucket.
    pub(super) fn start(
        &mut self,
        base: &mut StrategyCore,
        bucket: BucketId,
        exchange: impl FnOnce(&mut FlatBuffer, Comm<'_>) -> unisono::Result<()> + Send + 'static,
    ) -> Result<()> {
        let weights = base.store.take_weights(bucket).expect("whole");
        let operation = move |peers: Option<Comm<'_>>, mut weights: FlatBuffer| {
            peers.map_or(Ok(()), |peers| exchange(&mut weights, peers))?;
            Ok(weights)
        };
        self.0[bucket.0] = Some(PendingCollective::start(base.group.as_ref(), weights, operation)?);
        Ok(())
    }

    /// Waits for the weights of a unit, and opens it.
    pub(super) fn wait_unit(&mut self, base: &mut StrategyCore, unit: UnitId) -> Result<()> {
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
