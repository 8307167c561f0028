//! Memory statistics of a communicator.

use crate::engine::Engine;
use crate::engine::plan::Plan;
use crate::schedule::Step;
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
        let plans: usize = self.plans.iter().map(bytes_of_plan).sum();
        let plans = plans + self.eager.plans.bytes();
        let staging = staging + scratch + self.temp.capacity();
        MemoryStats { mapped, resident, staging, plans, sockets, descriptors }
    }
}

fn bytes_of_plan(plan: &Plan) -> usize {
    let steps = plan.program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
    let fused = plan.fusions.iter().map(|lane_program| size_of_val(&lane_program[..])).sum::<usize>();
    size_of::<Plan>() + fused + steps.map(bytes_of_step).sum::<usize>()
}

fn bytes_of_step(step: &Step) -> usize {
    let lists = match step {
        Step::Send { chunks, .. } => size_of_val(&chunks[..]),
        Step::Recv { into, .. } => size_of_val(&into[..]),
        Step::RecvReduce { with, into, .. } => size_of_val(&with[..]) + size_of_val(&into[..]),
        Step::Reduce { from, .. } => size_of_val(&from[..]),
        Step::Copy { .. } | Step::Signal | Step::Wait { .. } => 0,
    };
    size_of::<Step>() + lists
}
