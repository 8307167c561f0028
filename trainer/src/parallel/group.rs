//! The ranks that share the data.

use crate::error::Result;
use crate::flat::{Peers, Ranks};
use crate::memory::Memory;
use std::sync::Arc;
use unisono::Communicator;
use unisono_cuda::device::compute::Compute;

/// Ranks that exchange flat numbers, wherever these lie.
pub(super) struct Group {
    pub(super) ranks: Ranks,
    /// Where collectives are enqueued on a GPU, beside what modules compute.
    pub(super) lane: Option<Arc<Compute>>,
}

impl Group {
    /// Those of `host`, on GPUs if `memory` keeps flat numbers there. All of them call it.
    ///
    /// # Errors
    /// If ranks cannot meet on their GPUs.
    pub(super) fn new(host: Communicator, memory: &Memory) -> Result<Self> {
        let ranks = Ranks::new(host, memory.gpu())?;
        let beside = |lane: &Arc<Compute>| Compute::without_library(lane.stream().gpu().urgent_stream()?);
        let lane = memory.lane().map(beside).transpose()?.map(Arc::new);
        Ok(Self { ranks, lane })
    }

    pub(super) fn rank(&self) -> usize {
        self.ranks.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks.ranks()
    }

    /// The ranks as flat numbers reach them.
    pub(super) fn peers(&self) -> Peers<'_> {
        self.ranks.peers()
    }
}
