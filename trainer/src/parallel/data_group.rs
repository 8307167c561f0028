//! The ranks that share the data.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::flat::{Comm, ProcessGroup};
use std::sync::Arc;
use unisono::Communicator;
use unisono_cuda::device::compute::Compute;

/// Ranks that exchange flat numbers, wherever these lie.
pub(super) struct DataGroup {
    pub(super) size: ProcessGroup,
    /// Where collectives are enqueued on a GPU, beside what modules compute.
    pub(super) lane: Option<Arc<Compute>>,
}

impl DataGroup {
    /// Those of `host`, on GPUs if `memory` keeps flat numbers there. All of them call it.
    ///
    /// # Errors
    /// If ranks cannot meet on their GPUs.
    pub(super) fn new(host: Communicator, memory: &Allocator) -> Result<Self> {
        let ranks = ProcessGroup::new(host, memory.gpu())?;
        let beside =
            |lane: &Arc<Compute>| Compute::without_cublas(lane.stream().gpu().high_priority_stream()?);
        let lane = memory.lane().map(beside).transpose()?.map(Arc::new);
        Ok(Self { size: ranks, lane })
    }

    pub(super) fn rank(&self) -> usize {
        self.size.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.size.size()
    }

    /// The ranks as flat numbers reach them.
    pub(super) fn peers(&self) -> Comm<'_> {
        self.size.comm()
    }
}
