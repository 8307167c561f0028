//! Every rank keeps the whole model: data parallel.
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020. With owners, the first stage of Rajbhandari et
//! al., "ZeRO", SC 2020, by whole parameters.

use super::base::Base;
use super::gradients::{Gradients, Keeps};
use super::shares::{From, Shares, Stride};
use super::transit::Transit;
use super::{Kept, Kind, Parallel, Settings, Team};
use crate::error::Result;
use crate::flat::{BucketId, Layout, Store};
use crate::memory::Memory;
use crate::optim::{Optimiser, Step};
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::{Strategy, Way};
use std::sync::Arc;
use std::time::Duration;

/// Whole weights and gradients at every rank; gradients are exchanged as the settings' form says.
pub struct Replicated {
    base: Base,
    shares: Shares,
    /// Who keeps the optimiser's state of each bucket, if not everyone.
    owners: Option<Vec<usize>>,
    gradients: Gradients,
    /// Weights on their way from their owners.
    transit: Transit,
}

impl Replicated {
    /// Every rank keeps everything. Starts from the weights of rank 0.
    ///
    /// # Errors
    /// Of the broadcast.
    pub fn new(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Result<Self> {
        Self::with(Kind::Replicated, inventory, team, settings, memory)
    }

    /// The optimiser's state of every parameter is kept by one rank only, which takes the step and broadcasts the
    /// weights: three times the parameters are sent, where shares need two ([`Sharded`](super::Sharded)).
    ///
    /// # Errors
    /// Of the broadcast.
    pub fn with_owners(
        inventory: &Arc<Inventory>,
        team: Team,
        settings: &Settings,
        memory: &Memory,
    ) -> Result<Self> {
        Self::with(Kind::Owners, inventory, team, settings, memory)
    }

    fn with(
        kind: Kind,
        inventory: &Arc<Inventory>,
        team: Team,
        settings: &Settings,
        memory: &Memory,
    ) -> Result<Self> {
        let base = Base::new(kind, inventory, team, settings, memory)?;
        let (layout, rank, ranks) = (base.layout(), base.rank(), base.ranks());
        let owners = (kind == Kind::Owners).then(|| owners(&layout, ranks));
        let is_kept = |bucket: BucketId| owners.as_ref().is_none_or(|owners| owners[bucket.0] == rank);
        let range = |bucket| if is_kept(bucket) { 0..layout[bucket].count } else { 0..0 };
        let shares = Shares::new(inventory, &layout, memory, settings, range)?;
        let (gradients, transit) = (Gradients::new(Keeps::All, &base), Transit::new(&base));
        let mut made = Self { base, shares, owners, gradients, transit };
        made.initialise()?;
        Ok(made)
    }

    fn initialise(&mut self) -> Result<()> {
        let layout = self.base.layout();
        for bucket in layout.ids() {
            let mut weights =
                self.base.store.initial(bucket, 0..layout[bucket].count, self.base.settings.seed)?;
            if let Some(group) = &self.base.group {
                weights.broadcast(group.peers(), 0)?;
            }
            self.base.store.put_weights(bucket, weights);
            self.shares.initialise(bucket, self.base.settings.seed)?;
        }
        Ok(())
    }

    /// Starts sending the weights of a bucket from its owner to all.
    fn send_from_owner(&mut self, bucket: BucketId) -> Result<()> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let owner = owners[bucket.0];
        self.transit.start(&mut self.base, bucket, move |weights, peers| weights.broadcast(peers, owner))
    }
}

impl Strategy for Replicated {
    fn need(&mut self, unit: UnitId, _: Way) -> Result<()> {
        self.transit.need(&mut self.base, unit)
    }

    fn done(&mut self, unit: UnitId, _: Way) -> Result<()> {
        self.base.store.close(unit);
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

impl Parallel for Replicated {
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
        for bucket in self.base.trainable() {
            let gradients = self.gradients.take(&mut self.base, bucket)?;
            let weights = From { numbers: self.base.store.weights_mut(bucket), start: 0 };
            let (group, tensor) = (None, self.base.tensor.as_ref());
            let stride = Stride { optimiser, step, group, tensor };
            self.shares.update(bucket, weights, gradients.view(), &stride)?;
            self.gradients.spend(&mut self.base, bucket, gradients.numbers)?;
            self.send_from_owner(bucket)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.transit.settle(&mut self.base)
    }

    fn visit(&mut self, visit: &mut dyn FnMut(Kept<'_>) -> Result<()>) -> Result<()> {
        self.settle()?;
        for bucket in self.base.layout().ids() {
            let weights = From { numbers: self.base.store.weights_mut(bucket), start: 0 };
            self.shares.visit(bucket, weights, visit)?;
        }
        // What was awaited to be shown may have failed.
        self.base.check()
    }

    fn share_out(&mut self) -> Result<()> {
        self.base.layout().ids().try_for_each(|bucket| self.send_from_owner(bucket))?;
        self.settle()
    }

    fn is_replicated(&self) -> bool {
        self.owners.is_none()
    }

    fn make_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.shares.make_moments(count)
    }

    fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.base.waited)
    }
}

/// The owner of each bucket: the largest first, each to the rank with the least so far.
pub(crate) fn owners(layout: &Layout, ranks: usize) -> Vec<usize> {
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
