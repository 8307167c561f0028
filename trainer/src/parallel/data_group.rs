//! The data parallel group of ranks.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::gpu_timeline::GpuTimeline;
use crate::process_group::{Comm, ProcessGroup};
use std::sync::Arc;
use unisono::Communicator;
use unisono_cuda::device::compute::Compute;

/// Group of ranks that exchange flat buffers in host or GPU memory.
pub(super) struct DataGroup {
    pub(super) size: ProcessGroup,
    /// GPU stream for collectives, separate from the stream of the modules.
    pub(super) lane: Option<Arc<Compute>>,
    /// Recorder of the work on `lane`.
    pub(super) timeline: Option<GpuTimeline>,
}

impl DataGroup {
    /// Creates the group from `host`, with GPU collectives if `memory` keeps flat buffers on a GPU.
    /// All ranks must call this.
    ///
    /// # Errors
    /// Fails if ranks cannot set up GPU communication.
    pub(super) fn new(host: Communicator, memory: &Allocator) -> Result<Self> {
        let ranks = ProcessGroup::new(host, memory.gpu())?;
        // Other ranks wait for the kernels of a collective, so they start before waiting kernels of
        // modules.
        let beside =
            |lane: &Arc<Compute>| Compute::without_cublas(lane.stream().gpu().high_priority_stream()?);
        let lane = memory.lane().map(beside).transpose()?.map(Arc::new);
        Ok(Self { size: ranks, lane, timeline: memory.timeline().cloned() })
    }

    pub(super) fn rank(&self) -> usize {
        self.size.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.size.size()
    }

    /// Returns the communicator for flat buffers.
    pub(super) fn peers(&self) -> Comm<'_> {
        self.size.comm()
    }
}
