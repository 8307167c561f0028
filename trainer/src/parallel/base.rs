//! What all strategies have.

use super::partial::Partial;
use crate::error::{Error, Result};
use crate::flat::{BucketId, Countdown, Layout, Store};
use crate::memory::Memory;
use crate::parallel::{ExactSum, Kind, Mean, Settings, Team, Unused};
use crate::parameter::{Inventory, ParameterId};
use std::sync::Arc;
use std::time::Duration;
use unisono::{Communicator, Sum};

pub(super) struct Base {
    /// The ranks that share the data; none where this one is alone.
    pub(super) group: Option<Communicator>,
    pub(super) settings: Settings,
    pub(super) store: Store,
    pub(super) mean: Mean,
    pub(super) waited: Duration,
    /// The ranks that share every layer; none where this one is alone.
    pub(super) tensor: Option<Communicator>,
    countdown: Countdown,
    last: bool,
}

impl Base {
    pub(super) fn new(
        kind: Kind,
        inventory: &Arc<Inventory>,
        team: Team,
        settings: &Settings,
        memory: &Memory,
    ) -> Self {
        let Team { data: group, tensor } = team;
        let ranks = group.as_ref().map_or(1, Communicator::ranks);
        let layout = Arc::new(settings.layout(kind, inventory, ranks));
        Self {
            store: Store::new(Arc::clone(inventory), Arc::clone(&layout), memory),
            mean: Mean::new(ranks, settings, memory),
            countdown: Countdown::new(Arc::clone(inventory), layout),
            settings: settings.clone(),
            waited: Duration::ZERO,
            last: true,
            group,
            tensor,
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, Communicator::rank)
    }

    pub(super) fn ranks(&self) -> usize {
        self.group.as_ref().map_or(1, Communicator::ranks)
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.store.layout)
    }

    /// Buckets that have gradients.
    pub(super) fn trainable(&self) -> Vec<BucketId> {
        let layout = &self.store.layout;
        layout.ids().filter(|&bucket| layout[bucket].trainable).collect()
    }

    pub(super) fn begin(&mut self, last: bool) {
        self.countdown.restart();
        self.last = last;
    }

    /// Whether this backward pass is the last of its step.
    pub(super) fn is_last(&self) -> bool {
        self.last
    }

    pub(super) fn ready(&mut self, id: ParameterId) -> Result<()> {
        if self.countdown.ready(id)? {
            self.store.settle(id);
        }
        Ok(())
    }

    /// The next bucket in order, if all its gradients are there.
    pub(super) fn complete(&mut self) -> Option<BucketId> {
        self.countdown.complete()
    }

    /// The next bucket in order that was not handed out before backward ended.
    pub(super) fn rest(&mut self) -> Result<Option<BucketId>> {
        if self.settings.unused == Unused::Refuse && !self.countdown.missing().is_empty() {
            let names = self.countdown.missing().join(", ");
            let hint = "allow unused parameters, or freeze them";
            return Err(Error::illegal(format!("no gradient came for {names}; {hint}")));
        }
        Ok(self.countdown.rest())
    }

    /// Gradients of a bucket that must be summed over the tensor-parallel group.
    pub(super) fn partial(&self, bucket: BucketId) -> Partial {
        Partial::of(&self.store.layout[bucket], &self.store.inventory, self.tensor.as_ref())
    }

    /// Whether this rank counts a parameter in the norm: what all of a tensor-parallel group hold is counted once.
    pub(super) fn counts(&self, id: ParameterId) -> bool {
        let first = self.tensor.as_ref().is_none_or(|tensor| tensor.rank() == 0);
        first || self.store.inventory[id].cut.is_some()
    }

    /// The root of a sum of squares of which every rank has a part: of the data-parallel group, if `sharded`, and of the
    /// tensor-parallel one.
    pub(super) fn norm(&self, mut squares: ExactSum, sharded: bool) -> Result<f64> {
        for group in self.group.iter().filter(|_| sharded).chain(&self.tensor) {
            group.all_reduce(squares.digits_mut(), Sum)?;
        }
        Ok(squares.value().sqrt())
    }
}
