//! Every rank keeps its share of everything, and gathers a unit's weights while it is needed: ZeRO's third stage.
//!
//! Sources: Rajbhandari et al., "ZeRO", SC 2020; prefetching, its limit and resharding as in Zhao et al., "PyTorch FSDP:
//! experiences on scaling fully sharded data parallel", VLDB 16(12), 2023.

use super::base::Base;
use super::flight::Flight;
use super::gradients::{Gradients, Keeps};
use super::shares::{From, Shares, Stride};
use super::{Kept, Kind, Parallel, Settings, Team};
use crate::error::Result;
use crate::flat::{BucketId, Numbers, Peers, Store};
use crate::memory::{Class, Memory};
use crate::optim::{Optimiser, Step};
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::{Strategy, Way};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Weights, gradients and optimiser state in shares. The model may be larger than the memory of one rank: initial
/// weights are computed share by share too.
pub struct FullySharded {
    base: Base,
    shares: Shares,
    /// This rank's share of each bucket's weights. A gather under way holds on to it.
    weights: Vec<Arc<Numbers>>,
    gradients: Gradients,
    /// Whole weights on their way, in the order in which they were asked for.
    gathers: VecDeque<(BucketId, Flight)>,
    /// How many open units use each bucket.
    users: Vec<usize>,
}

impl FullySharded {
    /// With one bucket for each unit of the model.
    ///
    /// # Errors
    /// Of the file, where state is offloaded.
    pub fn new(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Result<Self> {
        let base = Base::new(Kind::Zero3, inventory, team, settings, memory)?;
        let (layout, rank) = (base.layout(), base.rank());
        let mut shares =
            Shares::new(inventory, &layout, memory, settings, |bucket| layout.share(bucket, rank))?;
        let initial = |bucket| {
            shares.initialise(bucket, settings.seed)?;
            base.store.initial(bucket, layout.share(bucket, rank), settings.seed).map(Arc::new)
        };
        let weights = layout.ids().map(initial).collect::<Result<_>>()?;
        let gradients = Gradients::new(Keeps::Share, &base);
        let users = vec![0; layout.buckets.len()];
        Ok(Self { base, shares, weights, gradients, gathers: VecDeque::new(), users })
    }

    fn buckets_of(&self, unit: UnitId) -> Vec<BucketId> {
        self.base.store.layout.buckets_of(&self.base.store.inventory, unit)
    }

    /// Whether a bucket's weights are whole, or on their way.
    fn is_coming(&self, bucket: BucketId) -> bool {
        self.base.store.bucket(bucket).is_some() || self.gathers.iter().any(|(coming, _)| *coming == bucket)
    }

    fn gather(&mut self, bucket: BucketId) -> Result<()> {
        let (share, store) = (Arc::clone(&self.weights[bucket.0]), &self.base.store);
        let count = store.layout[bucket].count;
        let whole = Numbers::new(&store.memory, Class::Weights, share.dtype(), count)?;
        let gather = move |peers: Option<Peers<'_>>, mut whole: Numbers| {
            match peers {
                Some(peers) => whole.all_gather(&share, peers)?,
                None => whole.copy_from(&share)?,
            }
            Ok(whole)
        };
        let flight = Flight::start(self.base.group.as_ref(), whole, gather)?;
        self.gathers.push_back((bucket, flight));
        Ok(())
    }

    /// Waits until a bucket that is coming is whole.
    fn land_weights(&mut self, bucket: BucketId) -> Result<()> {
        while self.base.store.bucket(bucket).is_none() {
            let (landed, flight) = self.gathers.pop_front().expect("it is coming");
            flight.arrive()?;
            let whole = flight.land(&mut self.base.waited)?;
            self.base.store.put_weights(landed, whole);
        }
        self.base.check()
    }

    /// Starts gathering for the units that come after `unit` on this way.
    fn prefetch(&mut self, unit: UnitId, way: Way) -> Result<()> {
        for distance in 1..=self.base.settings.prefetch {
            let Some(next) = self.neighbour(unit, way, distance) else { break };
            for bucket in self.buckets_of(next) {
                if self.gathers.len() < self.base.settings.gathers_max && !self.is_coming(bucket) {
                    self.gather(bucket)?;
                }
            }
        }
        Ok(())
    }

    fn neighbour(&self, unit: UnitId, way: Way, distance: usize) -> Option<UnitId> {
        let units = self.base.store.inventory.units.len();
        match way {
            Way::Forward => Some(UnitId(unit.0 + distance)).filter(|next| next.0 < units),
            Way::Backward => unit.0.checked_sub(distance).map(UnitId),
        }
    }

    /// Frees what nobody uses any more.
    fn release(&mut self, unit: UnitId, frees: bool) {
        for bucket in self.buckets_of(unit) {
            self.users[bucket.0] -= 1;
            if frees && self.users[bucket.0] == 0 {
                self.base.store.take_weights(bucket);
            }
        }
    }
}

impl Strategy for FullySharded {
    fn need(&mut self, unit: UnitId, way: Way) -> Result<()> {
        let buckets = self.buckets_of(unit);
        for &bucket in &buckets {
            self.users[bucket.0] += 1;
            if !self.is_coming(bucket) {
                self.gather(bucket)?;
            }
        }
        self.prefetch(unit, way)?;
        buckets.into_iter().try_for_each(|bucket| self.land_weights(bucket))?;
        self.base.store.open(unit)
    }

    fn done(&mut self, unit: UnitId, way: Way) -> Result<()> {
        self.base.store.close(unit);
        let turns_here = unit.0 + 1 == self.base.store.inventory.units.len();
        let keeps = way == Way::Forward && (turns_here || !self.base.settings.reshard_after_forward);
        self.release(unit, !keeps);
        Ok(())
    }

    fn ready(&mut self, id: ParameterId) -> Result<()> {
        self.gradients.ready(&mut self.base, id)
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.base.store.weights(id)
    }

    fn gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.base.store.gradient(id)
    }

    fn on_device(&self) -> Option<&Store> {
        Some(&self.base.store).filter(|store| store.is_on_device())
    }

    fn on_device_mut(&mut self) -> Option<&mut Store> {
        Some(&mut self.base.store).filter(|store| store.is_on_device())
    }
}

impl Parallel for FullySharded {
    fn begin(&mut self, last: bool) -> Result<()> {
        self.base.begin(last);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.gradients.finish(&mut self.base)
    }

    fn norm(&mut self) -> Result<f64> {
        self.gradients.norm(&mut self.base, &self.shares)
    }

    fn update(&mut self, optimiser: &dyn Optimiser, step: &Step) -> Result<()> {
        self.settle()?;
        for bucket in self.base.trainable() {
            let gradients = self.gradients.take(&mut self.base, bucket)?;
            let share = Arc::get_mut(&mut self.weights[bucket.0]).expect("nothing is under way");
            let weights = From { numbers: share, start: gradients.start };
            let (group, tensor) = (self.base.group.as_ref(), self.base.tensor.as_ref());
            let stride = Stride { optimiser, step, group, tensor };
            self.shares.update(bucket, weights, gradients.view(), &stride)?;
            self.gradients.spend(&mut self.base, bucket, gradients.numbers)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        while let Some((_, flight)) = self.gathers.pop_front() {
            flight.land(&mut self.base.waited)?;
        }
        for bucket in self.base.layout().ids() {
            self.base.store.take_weights(bucket);
        }
        self.base.check()
    }

    fn visit(&mut self, visit: &mut dyn FnMut(Kept<'_>) -> Result<()>) -> Result<()> {
        self.settle()?;
        for bucket in self.base.layout().ids() {
            let start = self.shares.range(bucket).start;
            let share = Arc::get_mut(&mut self.weights[bucket.0]).expect("nothing is under way");
            self.shares.visit(bucket, From { numbers: share, start }, visit)?;
        }
        // What was awaited to be shown may have failed.
        self.base.check()
    }

    fn share_out(&mut self) -> Result<()> {
        self.settle()
    }

    fn is_replicated(&self) -> bool {
        self.base.group.is_none()
    }

    fn make_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.shares.make_moments(count)
    }

    fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.base.waited)
    }
}
