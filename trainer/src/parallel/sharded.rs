//! Every rank keeps whole weights, and its share of everything else: ZeRO's first and second stage.
//!
//! Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.

use super::base::Base;
use super::flight::Flight;
use super::shares::{From, Shares, Stride};
use super::{ExactSum, Kept, Parallel, Settings, Team};
use crate::error::Result;
use crate::flat::{BucketId, Numbers};
use crate::memory::Memory;
use crate::optim::{Optimiser, Step};
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::{Strategy, Way};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use unisono::Communicator;

/// Optimiser state in shares; gradients whole until they are all reduced (stage 1), or reduced as they appear and then
/// freed (stage 2).
pub struct Sharded {
    base: Base,
    shares: Shares,
    /// Whether whole gradients stay until the end of the step.
    keeps_gradients: bool,
    /// This rank's shares of the mean gradients, by bucket.
    gradients: Vec<Option<Numbers>>,
    reductions: VecDeque<(BucketId, Flight<Numbers>)>,
    /// Weights on their way to all, by bucket.
    gathers: Vec<Option<Flight<Numbers>>>,
}

impl Sharded {
    /// ZeRO's first stage: optimiser state in shares.
    pub fn one(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Self {
        Self::new(inventory, team, settings, memory, true)
    }

    /// ZeRO's second stage: gradients in shares too.
    pub fn two(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Self {
        Self::new(inventory, team, settings, memory, false)
    }

    fn new(
        inventory: &Arc<Inventory>,
        team: Team,
        settings: &Settings,
        memory: &Memory,
        keeps_gradients: bool,
    ) -> Self {
        let layout = settings.layout(inventory, team.data.as_ref().map_or(1, Communicator::ranks));
        let base = Base::new(inventory, layout, team, settings, memory);
        let (layout, rank) = (base.layout(), base.rank());
        let shares = Shares::new(inventory, &layout, memory, |bucket| layout.share(bucket, rank));
        let gradients = layout.ids().map(|_| None).collect();
        let gathers = layout.ids().map(|_| None).collect();
        let mut made =
            Self { base, shares, keeps_gradients, gradients, reductions: VecDeque::new(), gathers };
        for bucket in layout.ids() {
            let weights = made.base.store.initial(bucket, 0..layout[bucket].count, settings.seed);
            made.base.store.put_weights(bucket, weights);
            made.shares.initialise(bucket, settings.seed);
        }
        made
    }

    fn launch(&mut self, bucket: BucketId) -> Result<()> {
        while !self.keeps_gradients && self.reductions.len() >= self.base.settings.reductions_max.max(1) {
            self.land_first()?;
        }
        let (mut whole, in_place) = (self.base.store.take_gradients(bucket), self.keeps_gradients);
        let (mean, partial) = (self.base.mean.clone(), self.base.partial(bucket));
        let reduction = move |group: Option<&Communicator>| {
            partial.sum(&mut whole)?;
            match in_place {
                true => mean.reduce_scatter_in_place(group, whole),
                false => mean.reduce_scatter(group, whole),
            }
        };
        let flight = Flight::start(self.base.group.as_ref(), reduction)?;
        self.reductions.push_back((bucket, flight));
        Ok(())
    }

    /// Waits for the oldest reduction. In stage 2 its result adds to what there is of the share's gradient.
    fn land_first(&mut self) -> Result<()> {
        let Some((bucket, flight)) = self.reductions.pop_front() else { return Ok(()) };
        let reduced = flight.land(&mut self.base.waited)?;
        match &mut self.gradients[bucket.0] {
            _ if self.keeps_gradients => self.base.store.put_gradients(bucket, reduced),
            Some(sum) => sum.add(&reduced),
            none => *none = Some(reduced),
        }
        Ok(())
    }

    /// Takes out what has this rank's share of a bucket's gradients.
    fn take_share(&mut self, bucket: BucketId) -> From<Numbers> {
        if self.keeps_gradients {
            return From { numbers: self.base.store.take_gradients(bucket), start: 0 };
        }
        let Range { start, end } = self.shares.range(bucket);
        let numbers = self.gradients[bucket.0].take();
        From { numbers: numbers.unwrap_or_else(|| self.base.store.no_gradients(bucket, end - start)), start }
    }

    fn put_share(&mut self, bucket: BucketId, gradients: Numbers) {
        match self.keeps_gradients {
            true => self.base.store.put_gradients(bucket, gradients),
            false => self.gradients[bucket.0] = Some(gradients),
        }
    }

    fn land_weights(&mut self, bucket: BucketId) -> Result<()> {
        if let Some(flight) = self.gathers[bucket.0].take() {
            let weights = flight.land(&mut self.base.waited)?;
            self.base.store.put_weights(bucket, weights);
        }
        Ok(())
    }

    fn gather(&mut self, bucket: BucketId) -> Result<()> {
        let mut weights = self.base.store.take_weights(bucket).expect("whole");
        let gather = move |group: Option<&Communicator>| {
            group.map_or(Ok(()), |group| weights.all_gather_in_place(group))?;
            Ok(weights)
        };
        self.gathers[bucket.0] = Some(Flight::start(self.base.group.as_ref(), gather)?);
        Ok(())
    }

    /// Whether whole gradients are reduced at the end of this backward pass.
    fn reduces_now(&self) -> bool {
        self.base.is_last() || (self.base.settings.reduce_each && !self.keeps_gradients)
    }
}

impl Strategy for Sharded {
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
        while self.reduces_now() {
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

impl Parallel for Sharded {
    fn begin(&mut self, last: bool) -> Result<()> {
        self.base.begin(last);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while let Some(bucket) = self.base.rest()? {
            self.launch(bucket)?;
        }
        while !self.reductions.is_empty() {
            self.land_first()?;
        }
        Ok(())
    }

    fn norm(&mut self) -> Result<f64> {
        let mut squares = ExactSum::default();
        for bucket in self.base.trainable() {
            let gradients = self.take_share(bucket);
            let (share, counts) = (self.shares.range(bucket), |id| self.base.counts(id));
            self.shares.add_squares(bucket, share, gradients.view(), counts, &mut squares);
            self.put_share(bucket, gradients.numbers);
        }
        self.base.norm(squares, true)
    }

    fn update(&mut self, optimiser: &dyn Optimiser, step: &Step) -> Result<()> {
        for bucket in self.base.trainable() {
            let mut gradients = self.take_share(bucket);
            let weights = From { numbers: self.base.store.weights_mut(bucket), start: 0 };
            let stride = Stride { optimiser, step, group: self.base.group.as_ref() };
            self.shares.update(bucket, weights, gradients.view(), &stride)?;
            if self.keeps_gradients {
                gradients.numbers.clear();
                self.base.store.put_gradients(bucket, gradients.numbers);
            }
        }
        // What forward needs first goes first.
        for bucket in self.base.trainable().into_iter().rev() {
            self.gather(bucket)?;
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
        self.base.layout().ids().rev().try_for_each(|bucket| self.gather(bucket))?;
        self.settle()
    }

    fn is_replicated(&self) -> bool {
        self.base.group.is_none()
    }

    fn make_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) {
        self.shares.make_moments(count);
    }

    fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.base.waited)
    }
}
