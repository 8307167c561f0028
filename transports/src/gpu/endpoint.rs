//! The endpoint of one GPU rank, with its peers, its counters and its launches.

use crate::gpu::host_staging::HostStaging;
use crate::gpu::launch::Kernels;
use crate::gpu::launch_counter::LaunchCounter;
use crate::gpu::link_test::LINK_TEST_MESSAGES;
use crate::gpu::peer_memory::{MappedPeerMemory, PeerMemory};
use crate::gpu::program::{LANES, Program};
use crate::gpu::reach::Reach;
use crate::gpu::table_arena::{Table, TableArena};
use crate::{Error, Result};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unisono_cuda::device::{
    Buffer, CaptureState, ChunkRef, Fifo, GpuError, Instr, LaneProgram, MemoryRef, PeerWindow, Pinned, Port,
    Protocol, Stream, UserOpKernels, WaitReport,
};

/// Path to another rank.
pub enum Peer {
    /// This rank itself.
    Local,
    /// Kernels of each rank access the peer memory of the other. A [link
    /// test](crate::gpu::LinkTest) has tested the path.
    Direct(MappedPeerMemory),
    /// Messages move through the host, which polls the staging FIFOs.
    Staged(Arc<Mutex<HostStaging>>),
}

/// All resources that a rank needs to launch its kernels.
pub struct Endpoint {
    pub(crate) memory: PeerMemory,
    /// Path to each rank, by rank.
    pub(crate) peers: Vec<Peer>,
    /// All memory that launches use, apart from programs and operands.
    memory_refs: Vec<MemoryRef>,
    /// Streams whose launches use that memory.
    streams: Mutex<Vec<Stream>>,
    /// Kernels of all data types.
    pub(crate) kernels: Kernels,
    /// Memory for tables, and for the scratch of most programs.
    pub(crate) tables: Arc<TableArena>,
    scratch: Scratch,
    pub(crate) counter: Arc<LaunchCounter>,
    reach: Reach,
    /// Thread blocks that are assumed to be resident at once.
    pub(crate) max_blocks: u32,
    /// FIFO state, one table for each protocol.
    pub(crate) ports: [Buffer<Port>; Protocol::ALL.len()],
    pub(crate) peer_windows: Buffer<PeerWindow>,
    /// Number of window programs that each channel has run.
    pub(crate) window_sequences: Buffer<u64>,
    /// State of the one-shot kernel, for lines of either form.
    ll_one_shot: OneShotState,
    ll128_one_shot: OneShotState,
    /// Flag that ends all waits.
    pub(crate) abort: Pinned<u32>,
    /// Flags by rank, each of which ends the waits for that rank.
    pub(crate) finalized: Pinned<u64>,
    /// Reason for which a launch ended early.
    pub(crate) wait_report: Pinned<WaitReport>,
    /// Flag of launches that ended early. It is in GPU memory, so that kernels read it without
    /// access to the host.
    pub(crate) failed: Buffer<u32>,
}

/// Memory that an endpoint reserves, so that launches need none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Bytes for the tables of programs and of uneven shares.
    pub table_bytes: usize,
    /// Bytes of scratch of one thread block.
    pub scratch_bytes: usize,
    /// Scratch chunks of one thread block.
    pub scratch_chunks: usize,
}

/// Scratch of programs. Launches of one endpoint follow each other, so they share it.
pub(crate) struct Scratch {
    pub(crate) bytes: Buffer<u8>,
    /// Length of the data in each chunk.
    pub(crate) lengths: Buffer<u64>,
}

/// State of the one-shot kernel in one form of lines.
pub(crate) struct OneShotState {
    /// Mailbox into which this rank sends, by rank.
    pub(crate) mailboxes: Buffer<*mut u8>,
    /// Number of launches in which each block has taken part.
    pub(crate) launches: Buffer<u64>,
}

/// A program in GPU memory, with room for its scratch.
pub struct DeviceProgram {
    pub(crate) program: Program,
    pub(crate) instrs: Table<Instr>,
    pub(crate) chunks: Table<ChunkRef>,
    pub(crate) lane_programs: Table<LaneProgram>,
    /// Separate scratch, if the program needs more than the endpoint has reserved.
    scratch: Option<Scratch>,
    /// True if no message of the program moves through the host.
    pub(crate) is_direct: bool,
}

impl Endpoint {
    /// Makes the endpoint of a rank from the paths to all ranks, by rank.
    ///
    /// `reach` says which ranks have no staged path between them. Memory beyond `reserve` is
    /// allocated when it is needed, and this may have to wait for running kernels.
    ///
    /// # Errors
    /// Returns an error if there is no room for the tables, or if the GPU does not support the line
    /// form of the peer memory.
    pub fn new(arena: PeerMemory, peers: Vec<Peer>, reach: Reach, reserve: Reserve) -> Result<Self> {
        let gpu = arena.gpu().clone();
        let sizes = *arena.layout().geometry();
        if sizes.ll128 && !gpu.has_ll128() {
            return Err(Error::InvalidUsage(format!("wide lines on {gpu:?}, which has none")));
        }
        let ports = |protocol| gpu.upload(&ports(&arena, &peers, protocol));
        let neighbor = |peer: &Peer| match peer {
            Peer::Local => arena.peer_window(),
            Peer::Direct(reached) => reached.peer_window(arena.layout()),
            Peer::Staged(_) => PeerWindow { window: null_mut(), inbox: null_mut() },
        };
        let neighbors: Vec<PeerWindow> = peers.iter().map(neighbor).collect();
        let counter = Arc::new(LaunchCounter::new(&gpu)?);
        let blocks = sizes.channels * LANES;
        let mut endpoint = Self {
            kernels: Kernels::new(&gpu)?,
            tables: TableArena::new(&gpu, reserve.table_bytes, &counter)?,
            scratch: Scratch {
                bytes: gpu.alloc(blocks.saturating_mul(reserve.scratch_bytes))?,
                lengths: gpu.alloc(blocks.saturating_mul(reserve.scratch_chunks))?,
            },
            counter,
            streams: Mutex::default(),
            memory_refs: Vec::new(),
            failed: gpu.alloc(1)?,
            ports: [ports(Protocol::Simple)?, ports(Protocol::Ll)?, ports(Protocol::Ll128)?],
            peer_windows: gpu.upload(&neighbors)?,
            window_sequences: gpu.alloc(sizes.channels)?,
            ll_one_shot: OneShotState::new(&arena, &peers, Protocol::Ll)?,
            ll128_one_shot: OneShotState::new(&arena, &peers, Protocol::Ll128)?,
            abort: gpu.pin(1)?,
            finalized: gpu.pin(sizes.ranks)?,
            wait_report: gpu.pin(1)?,
            max_blocks: Self::max_resident_blocks(&gpu)? as u32,
            reach,
            memory: arena,
            peers,
        };
        // The list comes last, because it names the memory of all other fields.
        endpoint.memory_refs = endpoint.all_memory();
        Ok(endpoint)
    }

    /// Returns handles to all memory that launches use, apart from programs and operands.
    fn all_memory(&self) -> Vec<MemoryRef> {
        let of_peer = |peer: &Peer| match peer {
            Peer::Local => Vec::new(),
            Peer::Direct(reached) => vec![reached.memory_ref()],
            Peer::Staged(stage) => lock(stage).memory_refs().to_vec(),
        };
        let mut memories: Vec<MemoryRef> = self.peers.iter().flat_map(of_peer).collect();
        memories.extend(self.ports.each_ref().map(Buffer::memory_ref));
        memories.extend(self.ll_one_shot.memory_refs());
        memories.extend(self.ll128_one_shot.memory_refs());
        memories.extend(self.tables.memory_refs());
        memories.extend(self.counter.memory_refs());
        memories.extend([
            self.memory.memory_ref(),
            self.peer_windows.memory_ref(),
            self.window_sequences.memory_ref(),
            self.scratch.bytes.memory_ref(),
            self.scratch.lengths.memory_ref(),
            self.abort.memory_ref(),
            self.finalized.memory_ref(),
            self.wait_report.memory_ref(),
            self.failed.memory_ref(),
        ]);
        memories
    }

    /// Uploads a program, for slices of at most `slice_bytes`.
    ///
    /// # Errors
    /// Returns an error if there is no room for the program.
    pub fn upload(&self, program: Program, slice_bytes: usize) -> Result<DeviceProgram> {
        let gpu = self.memory.gpu();
        let blocks =
            program.thread_blocks(self.memory.layout().geometry().channels) * program.bounds().scratch;
        let tables = program.tables();
        // The host computes the lengths of messages with this limit, so it is raised before a
        // launch can send any.
        for (_, stage) in self.staged_peers() {
            lock(&stage).raise_max_chunks(program.blocks_per_message());
        }
        let bytes = blocks.saturating_mul(slice_bytes);
        let fits = bytes <= self.scratch.bytes.len() && blocks <= self.scratch.lengths.len();
        let scratch = match fits {
            true => None,
            false => Some(Scratch { bytes: gpu.alloc(bytes)?, lengths: gpu.alloc(blocks)? }),
        };
        let is_direct =
            program.message_peers().all(|peer| matches!(self.peers.get(peer), Some(Peer::Direct(_))));
        Ok(DeviceProgram {
            is_direct,
            instrs: self.tables.table(&tables.instrs)?,
            chunks: self.tables.table(&tables.chunks)?,
            lane_programs: self.tables.table(&tables.lane_programs)?,
            scratch,
            program,
        })
    }

    /// Returns the scratch of a program.
    pub(crate) fn scratch<'e>(&'e self, uploaded: &'e DeviceProgram) -> &'e Scratch {
        uploaded.scratch.as_ref().unwrap_or(&self.scratch)
    }

    /// Returns the peer memory of this rank.
    pub fn memory(&self) -> &PeerMemory {
        &self.memory
    }

    /// Returns true if every rank reaches the peer memory of all others. Windows need this. The
    /// answer is the same on all ranks.
    pub fn all_peers_direct(&self) -> bool {
        self.reach.is_complete()
    }

    /// Returns which ranks reach each other. Messages in lines need this between their two ranks.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Returns the protocol of messages with flags, which is the same on all ranks. Kernels of the
    /// caller may come from a compiler that does not support LL128.
    pub fn ll_protocol(&self, own: Option<&UserOpKernels>) -> Protocol {
        let wide = self.memory.layout().geometry().ll128 && own.is_none();
        if wide { Protocol::Ll128 } else { Protocol::Ll }
    }

    /// Returns the state of all one-shot launches in this form of lines.
    pub(crate) fn one_shot_state(&self, lines: Protocol) -> &OneShotState {
        if lines == Protocol::Ll128 { &self.ll128_one_shot } else { &self.ll_one_shot }
    }

    /// Returns the ranks whose messages move through the host, each with its staging.
    pub fn staged_peers(&self) -> Vec<(usize, Arc<Mutex<HostStaging>>)> {
        let stage = |(rank, peer): (usize, &Peer)| match peer {
            Peer::Staged(stage) => Some((rank, Arc::clone(stage))),
            _ => None,
        };
        self.peers.iter().enumerate().filter_map(stage).collect()
    }

    /// Ends all launches, both those that wait and those that follow.
    pub fn abort(&self) {
        self.abort.words()[0].store(1, Ordering::Release);
    }

    /// Ends the waits for `peer`, which has left after it completed all its work. Data that it
    /// wrote before can still be read.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn mark_finalized(&self, peer: usize) {
        self.finalized.words()[peer].store(1, Ordering::Release);
    }

    /// Returns true if messages from `peer` arrive through the host.
    pub fn is_staged(&self, peer: usize) -> bool {
        matches!(self.peers.get(peer), Some(Peer::Staged(_)))
    }

    /// Returns the reason for which a launch ended early, if one did.
    pub fn wait_report(&self) -> WaitReport {
        self.wait_report.read_report()
    }

    /// Returns true if all launches that were enqueued have ended. Launches in graphs of other
    /// libraries are not counted. The call does not query the driver.
    pub fn is_idle(&self) -> bool {
        // A launch is counted after it was enqueued, and may have ended by then, so more launches
        // can be complete than counted.
        self.counter.completed() >= self.counter.enqueued()
    }

    /// Returns the number of launches that were enqueued and have not ended.
    pub fn launches_in_flight(&self) -> u64 {
        self.counter.enqueued().saturating_sub(self.counter.completed())
    }

    /// Counts launches that a graph of this library has repeated.
    pub fn count_replayed(&self, launches: u64) {
        self.counter.add_enqueued(launches);
    }

    /// Records that a launch in `stream` uses the memory of this endpoint.
    ///
    /// A graph has to know its memory at once. For other launches, only the stream is recorded, so
    /// that a launch costs little. The memory is told of these streams when the endpoint is
    /// dropped.
    pub(crate) fn record_use(&self, stream: &Stream, capture: CaptureState) {
        if capture != CaptureState::None {
            return stream.record_memory(capture, &self.memory_refs);
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.contains(stream) {
            return;
        }
        if streams.len() >= STREAMS_MAX {
            // A stream without work uses no memory. If it is used again, it is recorded again.
            streams.retain(|known| known.is_idle() != Ok(true));
        }
        streams.push(stream.clone());
    }

    /// Copies tables to the GPU that launches in `stream` need.
    pub(crate) fn flush_tables(&self, stream: &Stream, capture: CaptureState) -> Result<()> {
        self.tables.flush(stream, capture)
    }

    /// Returns an error if the GPU has failed, for callers that wait for launches.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn check_gpu(&self) -> std::result::Result<(), GpuError> {
        // If a kernel fails, every stream of its context fails. This stream is never captured, so
        // it can be queried.
        self.memory.gpu().utility_stream().is_idle().map(drop)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Launches may still run in these streams, so the memory is kept until their work is done.
        for stream in streams {
            stream.record_memory(CaptureState::None, &self.memory_refs);
        }
    }
}

impl OneShotState {
    fn new(arena: &PeerMemory, peers: &[Peer], lines: Protocol) -> Result<Self> {
        let mailbox = |peer: &Peer| match peer {
            Peer::Local => arena.mailbox(lines),
            Peer::Direct(reached) => reached.mailbox(arena.layout(), lines),
            Peer::Staged(_) => null_mut(),
        };
        let mailboxes: Vec<*mut u8> = peers.iter().map(mailbox).collect();
        let gpu = arena.gpu();
        Ok(Self {
            mailboxes: gpu.upload(&mailboxes)?,
            launches: gpu.alloc(arena.layout().geometry().channels)?,
        })
    }

    fn memory_refs(&self) -> [MemoryRef; 2] {
        [self.mailboxes.memory_ref(), self.launches.memory_ref()]
    }
}

impl DeviceProgram {
    /// Returns the program that was uploaded.
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn record_use(&self, stream: &Stream, capture: CaptureState) {
        self.instrs.record_use(stream, capture);
        self.chunks.record_use(stream, capture);
        self.lane_programs.record_use(stream, capture);
        if let Some(scratch) = &self.scratch {
            stream.record_memory(capture, &[scratch.bytes.memory_ref(), scratch.lengths.memory_ref()]);
        }
    }
}

fn ports(arena: &PeerMemory, peers: &[Peer], protocol: Protocol) -> Vec<Port> {
    let nothing =
        || Fifo { slots: null_mut(), tail: null_mut(), head: null_mut(), slot_count: 1, slot_bytes: 0 };
    let port = |(lane, peer): (usize, usize)| {
        let [outgoing, incoming] = match (&peers[peer], protocol) {
            (Peer::Direct(reached), _) => arena.fifos(reached, protocol, lane, peer),
            (Peer::Staged(stage), Protocol::Simple) => lock(stage).fifos(lane),
            _ => [nothing(), nothing()],
        };
        // Direct links between GPUs have been tested.
        let direct = matches!(&peers[peer], Peer::Direct(reached) if !reached.is_on(arena.gpu()));
        let tried = direct && protocol == Protocol::Simple && lane + 1 == arena.layout().geometry().lanes();
        let tested = if tried { LINK_TEST_MESSAGES } else { 0 };
        Port { out: outgoing, into: incoming, sent: tested, received: tested }
    };
    let lanes = 0..arena.layout().geometry().lanes();
    lanes.flat_map(|lane| (0..peers.len()).map(move |peer| (lane, peer))).map(port).collect()
}

fn lock(stage: &Mutex<HostStaging>) -> MutexGuard<'_, HostStaging> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of recorded streams above which streams without work are removed.
const STREAMS_MAX: usize = 16;
