//! Endpoint of one GPU rank: its peers, its counters and its launches.

use crate::gpu::host_staging::HostStaging;
use crate::gpu::link_test::LINK_TEST_MESSAGES;
use crate::gpu::peer_memory::{MappedPeerMemory, PeerMemory};
use crate::gpu::program::Program;
use crate::gpu::reach::Reach;
use crate::{Error, Result};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unisono_cuda::device::{
    Buffer, ChunkRef, Fifo, Instr, LaneProgram, PeerWindow, Pinned, PinnedRef, Port, Protocol, Stream,
    UserOpKernels, WaitReport,
};

/// Path to another rank.
pub enum Peer {
    /// This rank itself.
    Local,
    /// Kernels of each rank access the peer memory of the other. [`PeerMemory::test_links`] has
    /// tested the path.
    Direct(MappedPeerMemory),
    /// Messages move through the host, which polls the staging FIFOs.
    Staged(Arc<Mutex<HostStaging>>),
}

/// Everything that a rank needs to launch its kernels.
pub struct Endpoint {
    pub(crate) memory: PeerMemory,
    /// Path to each rank, by rank.
    pub(crate) peers: Vec<Peer>,
    /// Memory of the host staging.
    staging_refs: Vec<PinnedRef>,
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
    pub(crate) instrs: Buffer<Instr>,
    pub(crate) chunks: Buffer<ChunkRef>,
    pub(crate) lane_programs: Buffer<LaneProgram>,
    pub(crate) scratch: Buffer<u8>,
    pub(crate) lengths: Buffer<u64>,
    /// True if no message of the program moves through the host.
    pub(crate) is_direct: bool,
}

impl Endpoint {
    /// Makes the endpoint of a rank from the paths to all ranks, by rank.
    ///
    /// `reach` tells which ranks have no staged path between them.
    ///
    /// # Errors
    /// Returns an error if there is no room for the tables. Another error is a GPU without support
    /// for the line form of the peer memory.
    pub fn new(arena: PeerMemory, peers: Vec<Peer>, reach: Reach) -> Result<Self> {
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
        let held = |peer: &Peer| match peer {
            Peer::Staged(stage) => lock(stage).memory_refs().to_vec(),
            Peer::Local | Peer::Direct(_) => Vec::new(),
        };
        let neighbors: Vec<PeerWindow> = peers.iter().map(neighbor).collect();
        Ok(Self {
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
            staging_refs: peers.iter().flat_map(held).collect(),
            memory: arena,
            peers,
        })
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
        for (_, stage) in self.staged_peers() {
            lock(&stage).raise_max_chunks(program.blocks_per_message());
        }
        let is_direct =
            program.message_peers().all(|peer| matches!(self.peers.get(peer), Some(Peer::Direct(_))));
        Ok(DeviceProgram {
            is_direct,
            instrs: gpu.upload(&tables.instrs)?,
            chunks: gpu.upload(&tables.chunks)?,
            lane_programs: gpu.upload(&tables.lane_programs)?,
            scratch: gpu.alloc(blocks * slice_bytes)?,
            lengths: gpu.alloc(blocks)?,
            program,
        })
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
    /// caller may come from any compiler, which need not support LL128.
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
    /// wrote before is still found.
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
        self.wait_report.get(0)
    }

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream);
        for peer in &self.peers {
            if let Peer::Direct(reached) = peer {
                reached.record_stream(stream);
            }
        }
        self.staging_refs.iter().for_each(|held| held.record_stream(stream));
        self.ports.iter().for_each(|ports| ports.record_stream(stream));
        self.peer_windows.record_stream(stream);
        self.window_sequences.record_stream(stream);
        self.ll_one_shot.record_stream(stream);
        self.ll128_one_shot.record_stream(stream);
        self.abort.record_stream(stream);
        self.finalized.record_stream(stream);
        self.wait_report.record_stream(stream);
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

    fn record_stream(&self, stream: &Stream) {
        self.mailboxes.record_stream(stream);
        self.launches.record_stream(stream);
    }
}

impl DeviceProgram {
    /// Returns the program that was uploaded.
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.instrs.record_stream(stream);
        self.chunks.record_stream(stream);
        self.lane_programs.record_stream(stream);
        self.scratch.record_stream(stream);
        self.lengths.record_stream(stream);
    }
}

fn ports(arena: &PeerMemory, peers: &[Peer], protocol: Protocol) -> Vec<Port> {
    let nothing =
        || Fifo { slots: null_mut(), tail: null_mut(), head: null_mut(), slot_count: 1, slot_bytes: 0 };
    let port = |(lane, peer): (usize, usize)| {
        let [out, into] = match (&peers[peer], protocol) {
            (Peer::Direct(reached), _) => arena.fifos(reached, protocol, lane, peer),
            (Peer::Staged(stage), Protocol::Simple) => lock(stage).fifos(lane),
            _ => [nothing(), nothing()],
        };
        // Direct links have been tested.
        let direct = matches!(peers[peer], Peer::Direct(_));
        let tried = direct && protocol == Protocol::Simple && lane + 1 == arena.layout().geometry().lanes();
        let behind = if tried { LINK_TEST_MESSAGES } else { 0 };
        Port { out, into, sent: behind, received: behind }
    };
    let lanes = 0..arena.layout().geometry().lanes();
    lanes.flat_map(|lane| (0..peers.len()).map(move |peer| (lane, peer))).map(port).collect()
}

fn lock(stage: &Mutex<HostStaging>) -> MutexGuard<'_, HostStaging> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}
