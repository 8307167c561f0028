//! Every rank keeps the whole model: data parallel.
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020. With owners, the first stage of Rajbhandari et
//! al., "ZeRO", SC 2020, by whole parameters.

use super::base::Base;
use super::flight::Flight;
use super::shares::{From, Shares, Stride};
use super::{ExactSum, Form, Kept, Parallel, Settings, Team};
use crate::error::Result;
use crate::flat::{BucketId, Layout, Numbers, Packing};
use crate::memory::Memory;
use crate::optim::{Optimiser, Step};
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::{Strategy, Way};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use unisono::Communicator;

/// Whole weights and gradients at every rank; gradients are exchanged as the settings' form says.
pub struct Replicated {
    base: Base,
    shares: Shares,
    /// Who keeps the optimiser's state of each bucket, if not everyone.
    owners: Option<Vec<usize>>,
    reductions: VecDeque<(BucketId, Flight<Numbers>)>,
    /// Weights on their way from their owners, by bucket.
    broadcasts: Vec<Option<Flight<Numbers>>>,
}

impl Replicated {
    /// Every rank keeps everything. Starts from the weights of rank 0.
    ///
    /// # Errors
    /// Of the broadcast.
    pub fn new(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Result<Self> {
        let layout = settings.layout(inventory, 1);
        Self::with(inventory, layout, None, team, settings, memory)
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
        let layout = Layout::new(inventory, 1, Packing::Cap(0));
        let owners = owners(&layout, team.data.as_ref().map_or(1, Communicator::ranks));
        Self::with(inventory, layout, Some(owners), team, settings, memory)
    }

    fn with(
        inventory: &Arc<Inventory>,
        layout: Layout,
        owners: Option<Vec<usize>>,
        team: Team,
        settings: &Settings,
        memory: &Memory,
    ) -> Result<Self> {
        let base = Base::new(inventory, layout, team, settings, memory);
        let (layout, rank) = (base.layout(), base.rank());
        let is_kept = |bucket: BucketId| owners.as_ref().is_none_or(|owners| owners[bucket.0] == rank);
        let range = |bucket| if is_kept(bucket) { 0..layout[bucket].count } else { 0..0 };
        let shares = Shares::new(inventory, &layout, memory, range);
        let broadcasts = layout.ids().map(|_| None).collect();
        let mut made = Self { base, shares, owners, reductions: VecDeque::new(), broadcasts };
        made.initialise()?;
        Ok(made)
    }

    fn initialise(&mut self) -> Result<()> {
        let layout = self.base.layout();
        for bucket in layout.ids() {
            let mut weights =
                self.base.store.initial(bucket, 0..layout[bucket].count, self.base.settings.seed);
            if let Some(group) = &self.base.group {
                weights.broadcast(group, 0)?;
            }
            self.base.store.put_weights(bucket, weights);
            self.shares.initialise(bucket, self.base.settings.seed);
        }
        Ok(())
    }

    fn launch(&mut self, bucket: BucketId) -> Result<()> {
        let mut gradients = self.base.store.take_gradients(bucket);
        let (mean, partial) = (self.base.mean.clone(), self.base.partial(bucket));
        let reduction = move |group: Option<&Communicator>| {
            partial.sum(&mut gradients)?;
            mean.all_reduce(group, gradients)
        };
        let flight = Flight::start(self.base.group.as_ref(), reduction)?;
        self.reductions.push_back((bucket, flight));
        Ok(())
    }

    fn land_all(&mut self) -> Result<()> {
        while let Some((bucket, flight)) = self.reductions.pop_front() {
            let gradients = flight.land(&mut self.base.waited)?;
            self.base.store.put_gradients(bucket, gradients);
        }
        Ok(())
    }

    /// Starts sending the weights of a bucket from its owner to all.
    fn send_from_owner(&mut self, bucket: BucketId) -> Result<()> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let (owner, mut weights) = (owners[bucket.0], self.base.store.take_weights(bucket).expect("whole"));
        let broadcast = move |group: Option<&Communicator>| {
            group.map_or(Ok(()), |group| weights.broadcast(group, owner))?;
            Ok(weights)
        };
        self.broadcasts[bucket.0] = Some(Flight::start(self.base.group.as_ref(), broadcast)?);
        Ok(())
    }

    fn land_weights(&mut self, bucket: BucketId) -> Result<()> {
        if let Some(flight) = self.broadcasts[bucket.0].take() {
            let weights = flight.land(&mut self.base.waited)?;
            self.base.store.put_weights(bucket, weights);
        }
        Ok(())
    }
}

impl Strategy for Replicated {
    fn need(&mut self, unit: UnitId, _: Way) -> Result<()> {
        for bucket in self.base.layout().buckets_of(&self.base.store.inventory, unit) {
            self.land_weights(bucket)?;
        }
        self.base.store.open(unit);
        Ok(())
    }

    fn done(&mut self, unit: UnitId, _: Way) -> Result<()> {
        self.base.store.close(unit);
        Ok(())
    }

    fn ready(&mut self, id: ParameterId) -> Result<()> {
        self.base.ready(id)?;
        while self.base.is_last() && self.base.settings.form != Form::Naive {
            let Some(bucket) = self.base.complete() else { break };
            self.launch(bucket)?;
        }
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.base.store.weights(id)
    }

    fn gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.base.store.gradient(id)
    }
}

impl Parallel for Replicated {
    fn begin(&mut self, last: bool) -> Result<()> {
        self.base.begin(last);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while let Some(bucket) = self.base.rest()? {
            self.launch(bucket)?;
            if self.base.settings.form == Form::Naive {
                self.land_all()?;
            }
        }
        self.land_all()
    }

    fn norm(&mut self) -> Result<f64> {
        let mut squares = ExactSum::default();
        let layout = self.base.layout();
        for bucket in self.base.trainable() {
            let gradients = self.base.store.take_gradients(bucket);
            let all = From { numbers: &gradients, start: 0 };
            self.shares.add_squares(
                bucket,
                0..layout[bucket].count,
                all,
                |id| self.base.counts(id),
                &mut squares,
            );
            self.base.store.put_gradients(bucket, gradients);
        }
        self.base.norm(squares, false)
    }

    fn update(&mut self, optimiser: &dyn Optimiser, step: &Step) -> Result<()> {
        for bucket in self.base.trainable() {
            let mut gradients = self.base.store.take_gradients(bucket);
            let weights = From { numbers: self.base.store.weights_mut(bucket), start: 0 };
            let stride = Stride { optimiser, step, group: None };
            self.shares.update(bucket, weights, From { numbers: &gradients, start: 0 }, &stride)?;
            gradients.clear();
            self.base.store.put_gradients(bucket, gradients);
            self.send_from_owner(bucket)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.base.layout().ids().try_for_each(|bucket| self.land_weights(bucket))
    }

    fn visit(&mut self, visit: &mut dyn FnMut(Kept<'_>) -> Result<()>) -> Result<()> {
        self.settle()?;
        for bucket in self.base.layout().ids() {
            let weights = From { numbers: self.base.store.weights_mut(bucket), start: 0 };
            self.shares.visit(bucket, weights, visit)?;
        }
        Ok(())
    }

    fn share_out(&mut self) -> Result<()> {
        self.base.layout().ids().try_for_each(|bucket| self.send_from_owner(bucket))?;
        self.settle()
    }

    fn is_replicated(&self) -> bool {
        self.owners.is_none()
    }

    fn make_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) {
        self.shares.make_moments(count);
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
