//! Whole weights that are kept at every rank, on their way from those who changed them.

use super::base::Base;
use super::flight::Flight;
use crate::error::Result;
use crate::flat::{BucketId, Numbers, Peers};
use crate::parameter::UnitId;

/// Buckets on their way: out of the store until somebody needs them.
pub(super) struct Transit(Vec<Option<Flight>>);

impl Transit {
    pub(super) fn new(base: &Base) -> Self {
        Self(base.store.layout.ids().map(|_| None).collect())
    }

    /// Starts `exchange`, which gives every rank the weights of a bucket.
    pub(super) fn start(
        &mut self,
        base: &mut Base,
        bucket: BucketId,
        exchange: impl FnOnce(&mut Numbers, Peers<'_>) -> unisono::Result<()> + Send + 'static,
    ) -> Result<()> {
        let weights = base.store.take_weights(bucket).expect("whole");
        let operation = move |peers: Option<Peers<'_>>, mut weights: Numbers| {
            peers.map_or(Ok(()), |peers| exchange(&mut weights, peers))?;
            Ok(weights)
        };
        self.0[bucket.0] = Some(Flight::start(base.group.as_ref(), weights, operation)?);
        Ok(())
    }

    /// Waits for the weights of a unit, and opens it.
    pub(super) fn need(&mut self, base: &mut Base, unit: UnitId) -> Result<()> {
        for bucket in base.layout().buckets_of(&base.store.inventory, unit) {
            self.land(base, bucket)?;
        }
        base.store.open(unit)
    }

    /// Waits for all weights.
    pub(super) fn settle(&mut self, base: &mut Base) -> Result<()> {
        base.layout().ids().try_for_each(|bucket| self.land(base, bucket))?;
        base.check()
    }

    fn land(&mut self, base: &mut Base, bucket: BucketId) -> Result<()> {
        if let Some(flight) = self.0[bucket.0].take() {
            let weights = flight.land(&mut base.waited)?;
            base.store.put_weights(bucket, weights);
        }
        Ok(())
    }
}
