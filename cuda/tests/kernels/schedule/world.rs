//! Ranks on one emulator: the memory that peers access, and launches of all of them at once.

use super::program::Program;
use crate::emulator::Device;
use std::ptr::{from_mut, null};
use std::time::Duration;
use unisono_cuda::device::{
    BufferLayout, Completion, Deadline, Fifo, PeerWindow, Port, Protocol, ScheduleArgs, WaitReport,
};
use unisono_reducers::ReduceKind;

/// Sizes of a communicator.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) ranks: usize,
    pub(crate) channels: usize,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) bank_bytes: usize,
}

impl Size {
    fn ports(&self) -> usize {
        self.channels * ScheduleArgs::LANES * self.ranks
    }
}

/// Device memory, checked for out-of-bounds stores when it is dropped.
pub(crate) struct Memory<'d> {
    device: &'d Device,
    start: *mut u8,
    bytes: usize,
}

impl<'d> Memory<'d> {
    pub(crate) fn new(device: &'d Device, bytes: usize) -> Self {
        Self { device, start: device.allocate(bytes.max(1)), bytes }
    }

    pub(crate) fn zeroed(device: &'d Device, bytes: usize) -> Self {
        let mut memory = Self::new(device, bytes);
        memory.bytes().fill(0);
        memory
    }

    pub(crate) fn holding(device: &'d Device, bytes: &[u8]) -> Self {
        let mut memory = Self::new(device, bytes.len());
        memory.bytes().copy_from_slice(bytes);
        memory
    }

    pub(crate) fn start<T>(&self) -> *mut T {
        self.start.cast()
    }

    /// Returns the content, while no kernel runs.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length. Kernels run only within `World::run`, which borrows
        // all memory.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let freed = self.device.free(self.start);
        assert!(std::thread::panicking() || freed.is_ok(), "{freed:?}");
    }
}

/// State of one rank.
pub(crate) struct Rank<'d> {
    pub(crate) ports: Vec<Port>,
    neighbors: Vec<PeerWindow>,
    instances: Vec<u64>,
    pub(crate) status: WaitReport,
    pub(crate) abort: u32,
    window: Memory<'d>,
    inbox: Memory<'d>,
    /// FIFO memory of the rank's messages: slots and tail by port, head of those that it sends.
    slots: Memory<'d>,
    tails: Memory<'d>,
    heads: Memory<'d>,
}

/// A communicator.
pub(crate) struct World<'d> {
    pub(crate) device: &'d Device,
    pub(crate) size: Size,
    pub(crate) ranks: Vec<Rank<'d>>,
    pub(crate) limit: Duration,
}

// SAFETY: its pointers are to device memory, which the ranks' kernels share by design.
unsafe impl Sync for World<'_> {}

/// Parameters of an operation.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) kernel: String,
    pub(crate) protocol: Protocol,
    pub(crate) op: ReduceKind,
    /// Factor in the type that the kernel accumulates in.
    pub(crate) factor: u64,
    pub(crate) one: u64,
    pub(crate) element: usize,
    pub(crate) parts: usize,
    /// Bytes of each share of the inputs, and of the outputs.
    pub(crate) shares: (usize, usize),
    pub(crate) slice_bytes: usize,
    pub(crate) channels: usize,
    pub(crate) threads: u32,
}

impl<'d> World<'d> {
    pub(crate) fn new(device: &'d Device, size: Size) -> Self {
        let mut ranks: Vec<Rank> = (0..size.ranks).map(|_| Rank::new(device, &size)).collect();
        let neighbor = |rank: &Rank| PeerWindow { window: rank.window.start(), inbox: rank.inbox.start() };
        let neighbors: Vec<PeerWindow> = ranks.iter().map(neighbor).collect();
        for rank in 0..size.ranks {
            let port = |index: usize| Port {
                out: fifo(&ranks, &size, rank, index % size.ranks, index),
                into: fifo(&ranks, &size, index % size.ranks, rank, index),
                sent: 0,
                received: 0,
            };
            let ports = (0..size.ports()).map(port).collect();
            ranks[rank].ports = ports;
            ranks[rank].neighbors = neighbors.clone();
        }
        Self { device, size, ranks, limit: Duration::from_secs(60) }
    }

    /// Sets the state as if so many messages had been sent and received on every lane.
    pub(crate) fn go_on_from(&mut self, step: u64) {
        for rank in &mut self.ranks {
            rank.ports.iter_mut().for_each(|port| (port.sent, port.received) = (step, step));
            rank.heads.bytes().chunks_mut(8).for_each(|head| head.copy_from_slice(&step.to_le_bytes()));
        }
    }

    /// The last flag of every sixteen bytes of a slot of the first lane to `rank` from `sender`.
    pub(crate) fn line_flags(&mut self, rank: usize, sender: usize, slot: usize) -> Vec<u32> {
        let (slots, bytes) = (self.size.slots, self.size.slot_bytes);
        let slot_memory = self.ranks[rank].slots.bytes();
        let lines = slot_memory[(sender * slots + slot) * bytes..][..bytes].chunks(16);
        lines.map(|line| u32::from_le_bytes([line[12], line[13], line[14], line[15]])).collect()
    }

    /// Launches the kernels of all ranks that take part at once, and waits for them.
    pub(crate) fn run(&mut self, parts: &[Option<Part>], inputs: &[Memory], outputs: &[Memory]) {
        let taking_part = parts.iter().enumerate().filter_map(|(rank, part)| Some((rank, part.as_ref()?)));
        let launch = |(rank, part)| self.launch(rank, part, [&inputs[rank], &outputs[rank]]);
        let launches: Vec<Launch> = taking_part.map(launch).collect();
        let device = self.device;
        std::thread::scope(|scope| {
            for launch in &launches {
                scope.spawn(move || launch.run(device));
            }
        });
    }

    fn launch<'p>(&mut self, rank: usize, part: &'p Part, buffers: [&Memory; 2]) -> Launch<'p>
    where
        'd: 'p,
    {
        let Part { job, program } = part;
        let blocks = program.lane_programs.len() * job.channels;
        let room = program.scratch as usize * blocks;
        let scratch = Memory::new(self.device, room * job.slice_bytes);
        let lengths = Memory::new(self.device, room * 8);
        let arguments = self.arguments(job, rank, program, buffers);
        let arguments = ScheduleArgs { scratch: scratch.start(), lengths: lengths.start(), ..arguments };
        Launch { job, arguments, blocks: blocks as u32, _memory: [scratch, lengths] }
    }

    fn arguments(
        &mut self,
        job: &Job,
        rank: usize,
        program: &Program,
        buffers: [&Memory; 2],
    ) -> ScheduleArgs {
        let extent = |memory: &Memory, share_bytes: usize| BufferLayout {
            base: memory.start(),
            table: null(),
            share_bytes: share_bytes as u64,
            stride: stride(share_bytes, job.parts, job.element) as u64,
            chunks_per_share: job.parts as u32,
            unused: 0,
        };
        let longest = stride(job.shares.0.max(job.shares.1), job.parts, job.element);
        let rank_state = &mut self.ranks[rank];
        ScheduleArgs {
            instrs: program.acts.as_ptr(),
            chunks: program.places.as_ptr(),
            lane_programs: program.lane_programs.as_ptr(),
            ports: rank_state.ports.as_mut_ptr(),
            peer_windows: rank_state.neighbors.as_ptr(),
            window_sequences: rank_state.instances.as_mut_ptr(),
            scratch: std::ptr::null_mut(),
            lengths: std::ptr::null_mut(),
            input: extent(buffers[0], job.shares.0),
            output: extent(buffers[1], job.shares.1),
            slice_bytes: job.slice_bytes as u64,
            parity_bytes: self.size.bank_bytes as u64,
            slices: longest.div_ceil(job.slice_bytes).max(1) as u64,
            sequence: 0,
            fingerprint: job.op as u64,
            count: job.shares.0 as u64,
            factor: job.factor,
            one: job.one,
            ranks: self.size.ranks as u32,
            rank: rank as u32,
            channels: job.channels as u32,
            channels_max: self.size.channels as u32,
            lane_program_count: program.lane_programs.len() as u32,
            scratch_chunks: program.scratch,
            op: job.op as u32,
            divisor: self.size.ranks as u32,
            uses_window: program.uses_window.into(),
            protocol: job.protocol as u32,
            peer_buffers: null(),
            finalized: null(),
            deadline: Deadline {
                abort: &rank_state.abort,
                report: from_mut(&mut rank_state.status),
                timeout_ns: self.limit.as_nanos() as u64,
                failed: std::ptr::null_mut(),
            },
            completion: Completion::NONE,
        }
    }
}

/// One rank's part of an operation.
pub(crate) struct Part {
    pub(crate) job: Job,
    pub(crate) program: Program,
}

/// Arguments of one rank, and memory that lives as long as its launch.
struct Launch<'d> {
    job: &'d Job,
    arguments: ScheduleArgs,
    blocks: u32,
    _memory: [Memory<'d>; 2],
}

// SAFETY: one thread alone launches it, and the others leave its memory alone.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    fn run(&self, device: &Device) {
        device.run(&self.job.kernel, &self.arguments, self.blocks, self.job.threads).unwrap();
    }
}

impl<'d> Rank<'d> {
    fn new(device: &'d Device, size: &Size) -> Self {
        let ports = size.ports();
        Self {
            ports: Vec::new(),
            neighbors: Vec::new(),
            instances: vec![0; size.channels],
            status: WaitReport::OK,
            abort: 0,
            window: Memory::new(device, 2 * size.channels * size.bank_bytes),
            inbox: Memory::zeroed(device, 8 * ScheduleArgs::inbox_words(size.channels, size.ranks)),
            slots: Memory::zeroed(device, ports * size.slots * size.slot_bytes),
            tails: Memory::zeroed(device, 8 * ports),
            heads: Memory::zeroed(device, 8 * ports),
        }
    }
}

/// The slots of messages from `sender` to `receiver`. The port has this index on both sides, except
/// for the peer.
fn fifo(ranks: &[Rank], size: &Size, sender: usize, receiver: usize, index: usize) -> Fifo {
    let lane = index / size.ranks;
    let (at_receiver, at_sender) = (lane * size.ranks + sender, lane * size.ranks + receiver);
    // SAFETY: both are below the number of ports, for each of which there is so much.
    unsafe {
        Fifo {
            slots: ranks[receiver].slots.start::<u8>().add(at_receiver * size.slots * size.slot_bytes),
            tail: ranks[receiver].tails.start::<u64>().add(at_receiver),
            head: ranks[sender].heads.start::<u64>().add(at_sender),
            slot_count: size.slots as u32,
            slot_bytes: size.slot_bytes as u32,
        }
    }
}

/// The engine's distance between the blocks of a share.
pub(crate) fn stride(share_bytes: usize, parts: usize, element: usize) -> usize {
    let even = share_bytes.div_ceil(parts).next_multiple_of(element);
    if even >= 1024 { even.next_multiple_of(64) } else { even }
}
