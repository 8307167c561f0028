//! What all strategies have.

use super::group::Group;
use super::partial::Partial;
use crate::error::{Error, Result};
use crate::flat::{BucketId, Countdown, Layout, Ranks, Store};
use crate::memory::Memory;
use crate::parallel::{Kind, Mean, Settings, Team, Unused};
use crate::parameter::{Inventory, ParameterId};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Base {
    /// The ranks that share the data; none where this one is alone.
    pub(super) group: Option<Group>,
    pub(super) settings: Settings,
    pub(super) store: Store,
    pub(super) mean: Mean,
    pub(super) waited: Duration,
    /// The ranks that share every layer; none where this one is alone.
    pub(super) tensor: Option<Ranks>,
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
    ) -> Result<Self> {
        let Team { data, tensor } = team;
        expect_resident(settings, memory)?;
        let group = data.map(|data| Group::new(data, memory)).transpose()?;
        let tensor = tensor.map(|tensor| Ranks::new(tensor, memory.gpu())).transpose()?;
        let ranks = group.as_ref().map_or(1, Group::ranks);
        let layout = Arc::new(settings.layout(kind, inventory, ranks));
        Ok(Self {
            store: Store::new(Arc::clone(inventory), Arc::clone(&layout), memory),
            mean: Mean::new(ranks, settings, memory),
            countdown: Countdown::new(Arc::clone(inventory), layout),
            settings: settings.clone(),
            waited: Duration::ZERO,
            last: true,
            group,
            tensor,
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, Group::rank)
    }

    pub(super) fn ranks(&self) -> usize {
        self.group.as_ref().map_or(1, Group::ranks)
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.store.layout)
    }

    /// The first error of what was enqueued on GPUs, if one is known.
    pub(super) fn check(&self) -> Result<()> {
        let data = self.group.iter().map(|group| &group.ranks);
        data.chain(&self.tensor).try_for_each(Ranks::check)
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
            self.store.settle(id)?;
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
}

/// That flat memory of a GPU is not asked for what only the host's can do.
fn expect_resident(settings: &Settings, memory: &Memory) -> Result<()> {
    if memory.lane().is_none() || settings.offload.is_none() {
        return Ok(());
    }
    let what = "optimiser state on disk, with flat memory of a GPU: not part of this build";
    Err(Error::Unavailable(what.to_owned()))
}
