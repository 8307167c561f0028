//! What a communicator keeps in memory at this rank.

use crate::engine::Engine;
use crate::engine::plan::Plan;
use crate::schedule::Step;
use unisono_transports::{ControlChannel, Footprint, Link};

/// What a communicator keeps in memory at this rank, in bytes where nothing else is said.
///
/// Everything is counted where it is kept, by its length or by the kernel's account of pages, not
/// sampled from the process: small values on the heap (some hundred bytes for each rank) and what the
/// kernel keeps for page tables and sockets is left out, and [`MemoryStats::sockets`] counted instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Address space of shared memory, this rank's own and its peers'. Costs nothing by itself.
    pub mapped: usize,
    /// Pages of this rank's own shared memory that exist, whichever rank touched them: FIFOs into it, slots, windows,
    /// and what `alloc` lent. The sum over all ranks counts every page once. Zero for threads, where
    /// it cannot be told from other memory of the process.
    pub resident: usize,
    /// Room for messages on their way through this process, and for chunks in between.
    pub staging: usize,
    /// Schedules that have been built, to be used again.
    pub plans: usize,
    /// Connections that are open. Each costs the kernel some 4 KiB here, and its buffers while data waits.
    pub sockets: usize,
    /// Descriptors that are open, sockets included.
    pub descriptors: usize,
}

impl MemoryStats {
    /// Bytes that it really costs: all but address space, without the kernel's part.
    pub fn total(&self) -> usize {
        self.resident + self.staging + self.plans
    }
}

impl Engine {
    /// What is kept in memory for this communicator.
    pub(crate) fn memory_stats(&self) -> MemoryStats {
        let links = self.fabric.links.iter().flatten().map(|link| Link::footprint(&**link));
        let Footprint { mapped, resident, staging, sockets, descriptors } =
            links.sum::<Footprint>() + ControlChannel::footprint(&*self.fabric.control);
        let scratch: usize = self.channels.iter().map(|channel| channel.scratch.bytes()).sum();
        let plans: usize = self.plans.iter().map(bytes_of_plan).sum();
        let plans = plans + self.eager.bytes();
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
