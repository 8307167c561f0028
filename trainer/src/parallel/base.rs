//! What all strategies have.

use crate::error::{Error, Result};
use crate::flat::{BucketId, Countdown, Layout, Store};
use crate::memory::Memory;
use crate::parallel::{ExactSum, Mean, Settings, Unused};
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
    countdown: Countdown,
    last: bool,
}

impl Base {
    pub(super) fn new(
        inventory: &Arc<Inventory>,
        layout: Layout,
        group: Option<Communicator>,
        settings: &Settings,
        memory: &Memory,
    ) -> Self {
        let layout = Arc::new(layout);
        let ranks = group.as_ref().map_or(1, Communicator::ranks);
        Self {
            store: Store::new(Arc::clone(inventory), Arc::clone(&layout), memory, settings.wide_gradients),
            mean: Mean::new(ranks, settings, memory),
            countdown: Countdown::new(Arc::clone(inventory), layout),
            settings: settings.clone(),
            waited: Duration::ZERO,
            last: true,
            group,
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, Communicator::rank)
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

    /// The root of a sum of squares that every rank has a part of.
    pub(super) fn norm_of_parts(&self, mut squares: ExactSum) -> Result<f64> {
        if let Some(group) = &self.group {
            group.all_reduce(squares.digits_mut(), Sum)?;
        }
        Ok(squares.value().sqrt())
    }
}
