//! Memory statistics of a communicator.

use crate::engine::Engine;
use crate::engine::plan::Plan;
use unisono_transports::{ControlChannel, Footprint, Link};

/// Memory that a communicator uses at this rank. Sizes are bytes.
///
/// Sizes come from the data structures and from the kernel's count of pages, not from samples of
/// the process. Not included are small values on the heap (some hundred bytes for each rank) and
/// memory of the kernel for page tables and sockets; [`MemoryStats::sockets`] counts the latter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Address space of shared memory, of this rank and of its peers. It costs no memory by itself.
    pub mapped: usize,
    /// Resident pages of this rank's shared memory, whichever rank touched them: FIFOs, slots,
    /// windows and symmetric buffers. The sum over all ranks counts every page once. Zero for ranks
    /// that are threads, whose pages cannot be distinguished from other memory of the process.
    pub resident: usize,
    /// Buffers for messages in transit and for intermediate chunks.
    pub staging: usize,
    /// Plans that are kept for later operations.
    pub plans: usize,
    /// Number of open connections. Each costs about 4 KiB of kernel memory, plus buffers while data
    /// waits.
    pub sockets: usize,
    /// Number of open descriptors, including sockets.
    pub descriptors: usize,
}

impl MemoryStats {
    /// Returns the memory in use: everything except address space and kernel memory.
    pub fn total(&self) -> usize {
        self.resident + self.staging + self.plans
    }
}

impl Engine {
    /// Returns the memory that this communicator uses.
    pub(crate) fn memory_stats(&self) -> MemoryStats {
        let links = self.fabric.links.iter().flatten().map(|link| Link::footprint(&**link));
        let Footprint { mapped, resident, staging, sockets, descriptors } =
            links.sum::<Footprint>() + ControlChannel::footprint(&*self.fabric.control);
        let scratch: usize = self.channels.iter().map(|channel| channel.scratch.bytes()).sum();
        let plans: usize = self.plans.iter().map(Plan::bytes).sum();
        let plans = plans + self.eager.plans.bytes();
        let staging = staging + scratch + self.temp.capacity();
        MemoryStats { mapped, resident, staging, plans, sockets, descriptors }
    }
}
