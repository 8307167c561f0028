//! One rank's end of everything between GPU ranks.

use super::arena::{Arena, Reached};
use super::program::Program;
use super::stage::Stage;
use super::trial::TRIAL_MESSAGES;
use crate::{Error, Result};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unisono_cuda::device::{
    Act, Buffer, Fifo, Held, Neighbour, OwnKernels, Pinned, Place, Port, Protocol, Status, Strand, Stream,
};

/// How another rank is reached.
pub enum Peer {
    /// It is this rank.
    Own,
    /// Its arena is written and read by kernels here, and the other way round: [`Arena::try_links`] has seen it.
    Direct(Reached),
    /// By way of the host, which gives the stage its turns.
    Staged(Arc<Mutex<Stage>>),
}

/// What a rank launches its kernels with.
pub struct Endpoint {
    pub(super) arena: Arena,
    /// By rank.
    pub(super) peers: Vec<Peer>,
    /// Memory of the stages.
    staged: Vec<Held>,
    all_direct: bool,
    /// Blocks that were counted on to run at once.
    pub(super) room: u32,
    /// Of each protocol.
    pub(super) ports: [Buffer<Port>; Protocol::ALL.len()],
    pub(super) neighbours: Buffer<Neighbour>,
    /// Window programs that each channel has run.
    pub(super) instances: Buffer<u64>,
    /// In lines of either form.
    narrow_shots: Shots,
    wide_shots: Shots,
    /// Ends all waits.
    pub(super) abort: Pinned<u32>,
    /// By rank: ends waits for it.
    pub(super) left: Pinned<u64>,
    /// Why a launch ended early.
    pub(super) status: Pinned<Status>,
}

/// What is reduced in one shot.
pub(super) struct Shots {
    /// By rank: where it is sent.
    pub(super) mailboxes: Buffer<*mut u8>,
    /// In how many each block has taken part.
    pub(super) launches: Buffer<u64>,
}

/// A program in memory of the GPU, with room for its scratch.
pub struct Uploaded {
    pub(super) program: Program,
    pub(super) acts: Buffer<Act>,
    pub(super) places: Buffer<Place>,
    pub(super) strands: Buffer<Strand>,
    pub(super) scratch: Buffer<u8>,
    pub(super) lengths: Buffer<u64>,
}

impl Endpoint {
    /// Links to all ranks, by rank; `all_direct`: on no rank is any of them staged.
    ///
    /// # Errors
    /// If there is no room for the tables, or the GPU does not know the lines that the arenas are for.
    pub fn new(arena: Arena, peers: Vec<Peer>, all_direct: bool) -> Result<Self> {
        let gpu = arena.gpu().clone();
        let sizes = *arena.layout().sizes();
        if sizes.wide_lines && !gpu.has_wide_lines() {
            return Err(Error::Misuse(format!("wide lines on {gpu:?}, which has none")));
        }
        let ports = |protocol| gpu.upload(&ports(&arena, &peers, protocol));
        let neighbour = |peer: &Peer| match peer {
            Peer::Own => arena.neighbour(),
            Peer::Direct(reached) => reached.neighbour(arena.layout()),
            Peer::Staged(_) => Neighbour { window: null_mut(), inbox: null_mut() },
        };
        let held = |peer: &Peer| match peer {
            Peer::Staged(stage) => lock(stage).hold().to_vec(),
            Peer::Own | Peer::Direct(_) => Vec::new(),
        };
        let neighbours: Vec<Neighbour> = peers.iter().map(neighbour).collect();
        Ok(Self {
            ports: [ports(Protocol::Slots)?, ports(Protocol::Lines)?, ports(Protocol::WideLines)?],
            neighbours: gpu.upload(&neighbours)?,
            instances: gpu.alloc(sizes.channels)?,
            narrow_shots: Shots::new(&arena, &peers, Protocol::Lines)?,
            wide_shots: Shots::new(&arena, &peers, Protocol::WideLines)?,
            abort: gpu.pin(1)?,
            left: gpu.pin(sizes.ranks)?,
            status: gpu.pin(1)?,
            room: Self::residents(&gpu)? as u32,
            all_direct: all_direct && !peers.iter().any(|peer| matches!(peer, Peer::Staged(_))),
            staged: peers.iter().flat_map(held).collect(),
            arena,
            peers,
        })
    }

    /// Uploads a program, for slices of at most `slice_bytes`.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn upload(&self, program: Program, slice_bytes: usize) -> Result<Uploaded> {
        let gpu = self.arena.gpu();
        let blocks = program.blocks(self.arena.layout().sizes().channels) * program.bounds().scratch;
        let tables = program.tables();
        for (_, stage) in self.stages() {
            lock(&stage).expect_blocks(program.blocks_per_message());
        }
        Ok(Uploaded {
            acts: gpu.upload(&tables.acts)?,
            places: gpu.upload(&tables.places)?,
            strands: gpu.upload(&tables.strands)?,
            scratch: gpu.alloc(blocks * slice_bytes)?,
            lengths: gpu.alloc(blocks)?,
            program,
        })
    }

    /// This rank's arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether every rank reaches the arenas of all others, so that there can be windows and messages in lines: the same on
    /// all ranks.
    pub fn reaches_all(&self) -> bool {
        self.all_direct
    }

    /// How messages with flags go: the same on all ranks. Kernels of one's own are made by whatever compiler there is, which
    /// need not know wide lines.
    pub fn lines(&self, own: Option<&OwnKernels>) -> Protocol {
        let wide = self.arena.layout().sizes().wide_lines && own.is_none();
        if wide { Protocol::WideLines } else { Protocol::Lines }
    }

    /// Of all shots in lines of this form.
    pub(super) fn shots(&self, lines: Protocol) -> &Shots {
        if lines == Protocol::WideLines { &self.wide_shots } else { &self.narrow_shots }
    }

    /// What goes by way of the host: to and from which rank.
    pub fn stages(&self) -> Vec<(usize, Arc<Mutex<Stage>>)> {
        let stage = |(rank, peer): (usize, &Peer)| match peer {
            Peer::Staged(stage) => Some((rank, Arc::clone(stage))),
            _ => None,
        };
        self.peers.iter().enumerate().filter_map(stage).collect()
    }

    /// Ends all launches, those that wait and those that come.
    pub fn abort(&self) {
        self.abort.words()[0].store(1, Ordering::Release);
    }

    /// Ends waits for `peer`, which has left with all that it had to do done: what it wrote is found before.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn part_from(&self, peer: usize) {
        self.left.words()[peer].store(1, Ordering::Release);
    }

    /// Whether what comes from `peer` comes by way of the host.
    pub fn is_staged(&self, peer: usize) -> bool {
        matches!(self.peers.get(peer), Some(Peer::Staged(_)))
    }

    /// Why a launch ended early, if one did.
    pub fn status(&self) -> Status {
        self.status.get(0)
    }

    pub(super) fn used_by(&self, stream: &Stream) {
        self.arena.used_by(stream);
        for peer in &self.peers {
            if let Peer::Direct(reached) = peer {
                reached.used_by(stream);
            }
        }
        self.staged.iter().for_each(|held| held.used_by(stream));
        self.ports.iter().for_each(|ports| ports.used_by(stream));
        self.neighbours.used_by(stream);
        self.instances.used_by(stream);
        self.narrow_shots.used_by(stream);
        self.wide_shots.used_by(stream);
        self.abort.used_by(stream);
        self.left.used_by(stream);
        self.status.used_by(stream);
    }
}

impl Shots {
    fn new(arena: &Arena, peers: &[Peer], lines: Protocol) -> Result<Self> {
        let mailbox = |peer: &Peer| match peer {
            Peer::Own => arena.mailbox(lines),
            Peer::Direct(reached) => reached.mailbox(arena.layout(), lines),
            Peer::Staged(_) => null_mut(),
        };
        let mailboxes: Vec<*mut u8> = peers.iter().map(mailbox).collect();
        let gpu = arena.gpu();
        Ok(Self { mailboxes: gpu.upload(&mailboxes)?, launches: gpu.alloc(arena.layout().sizes().channels)? })
    }

    fn used_by(&self, stream: &Stream) {
        self.mailboxes.used_by(stream);
        self.launches.used_by(stream);
    }
}

impl Uploaded {
    /// What was uploaded.
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub(super) fn used_by(&self, stream: &Stream) {
        self.acts.used_by(stream);
        self.places.used_by(stream);
        self.strands.used_by(stream);
        self.scratch.used_by(stream);
        self.lengths.used_by(stream);
    }
}

fn ports(arena: &Arena, peers: &[Peer], protocol: Protocol) -> Vec<Port> {
    let nothing =
        || Fifo { slots: null_mut(), tail: null_mut(), head: null_mut(), slot_count: 1, slot_bytes: 0 };
    let port = |(lane, peer): (usize, usize)| {
        let [out, into] = match (&peers[peer], protocol) {
            (Peer::Direct(reached), _) => arena.fifos(reached, protocol, lane, peer),
            (Peer::Staged(stage), Protocol::Slots) => lock(stage).fifos(lane),
            _ => [nothing(), nothing()],
        };
        // Direct links have been tried.
        let direct = matches!(peers[peer], Peer::Direct(_));
        let tried = direct && protocol == Protocol::Slots && lane + 1 == arena.layout().sizes().lanes();
        let behind = if tried { TRIAL_MESSAGES } else { 0 };
        Port { out, into, sent: behind, received: behind }
    };
    let lanes = 0..arena.layout().sizes().lanes();
    lanes.flat_map(|lane| (0..peers.len()).map(move |peer| (lane, peer))).map(port).collect()
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}
