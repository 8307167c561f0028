//! Every rank keeps whole weights, and its share of everything else: ZeRO's first and second stage.
//!
//! Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.

use super::base::Base;
use super::gradients::{Gradients, Keeps};
use super::shares::{From, Shares, Stride};
use super::transit::Transit;
use super::{Kept, Kind, Parallel, Settings, Team};
use crate::error::Result;
use crate::flat::{BucketId, Store};
use crate::memory::Memory;
use crate::optim::{Optimiser, Step};
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use crate::strategy::{Strategy, Way};
use std::sync::Arc;
use std::time::Duration;

/// Optimiser state in shares; gradients whole until they are all reduced (stage 1), or reduced as they appear and then
/// freed (stage 2).
pub struct Sharded {
    base: Base,
    shares: Shares,
    gradients: Gradients,
    /// Weights on their way to all.
    transit: Transit,
}

impl Sharded {
    /// ZeRO's first stage: optimiser state in shares.
    ///
    /// # Errors
    /// Of the file, where state is offloaded.
    pub fn one(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Result<Self> {
        Self::new(Kind::Zero1, inventory, team, settings, memory)
    }

    /// ZeRO's second stage: gradients in shares too.
    ///
    /// # Errors
    /// Of the file, where state is offloaded.
    pub fn two(inventory: &Arc<Inventory>, team: Team, settings: &Settings, memory: &Memory) -> Result<Self> {
        Self::new(Kind::Zero2, inventory, team, settings, memory)
    }

    fn new(
        kind: Kind,
        inventory: &Arc<Inventory>,
        team: Team,
        settings: &Settings,
        memory: &Memory,
    ) -> Result<Self> {
        let base = Base::new(kind, inventory, team, settings, memory)?;
        let keeps = if kind == Kind::Zero1 { Keeps::ShareInPlace } else { Keeps::Share };
        let (layout, rank) = (base.layout(), base.rank());
        let shares = Shares::new(inventory, &layout, memory, settings, |bucket| layout.share(bucket, rank))?;
        let (gradients, transit) = (Gradients::new(keeps, &base), Transit::new(&base));
        let mut made = Self { base, shares, gradients, transit };
        for bucket in layout.ids() {
            let weights = made.base.store.initial(bucket, 0..layout[bucket].count, settings.seed)?;
            made.base.store.put_weights(bucket, weights);
            made.shares.initialise(bucket, settings.seed)?;
        }
        Ok(made)
    }

    fn gather(&mut self, bucket: BucketId) -> Result<()> {
        self.transit.start(&mut self.base, bucket, |weights, peers| weights.all_gather_in_place(peers))
    }
}

impl Strategy for Sharded {
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

impl Parallel for Sharded {
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
            let (group, tensor) = (self.base.group.as_ref(), self.base.tensor.as_ref());
            let stride = Stride { optimiser, step, group, tensor };
            self.shares.update(bucket, weights, gradients.view(), &stride)?;
            self.gradients.spend(&mut self.base, bucket, gradients.numbers)?;
        }
        // What forward needs first goes first.
        for bucket in self.base.trainable().into_iter().rev() {
            self.gather(bucket)?;
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
        self.base.layout().ids().rev().try_for_each(|bucket| self.gather(bucket))?;
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
