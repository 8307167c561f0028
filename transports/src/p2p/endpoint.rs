//! One rank's end of everything between GPU ranks.

use super::arena::{Arena, Fifos, Reached};
use super::program::Program;
use crate::Result;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use unisono_cuda::DType;
use unisono_cuda::device::{
    Act, Buffer, Fifo, Kernel, Neighbour, Pinned, Place, Port, Protocol, Status, Strand, Stream,
};

/// What a rank launches its kernels with.
pub struct Endpoint {
    pub(super) arena: Arena,
    /// By rank; none at its own place.
    pub(super) reached: Vec<Option<Reached>>,
    /// Of each protocol.
    pub(super) ports: [Buffer<Port>; 2],
    pub(super) neighbours: Buffer<Neighbour>,
    /// Window programs that each channel has run.
    pub(super) instances: Buffer<u64>,
    /// Ends all waits.
    pub(super) abort: Pinned<u32>,
    /// Why a launch ended early.
    pub(super) status: Pinned<Status>,
    pub(super) kernels: Mutex<HashMap<DType, Kernel>>,
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
    /// Links to all peers whose arenas are reached; `reached` by rank, with none at this rank's own place.
    ///
    /// # Errors
    /// If there is no room for the tables.
    pub fn new(arena: Arena, reached: Vec<Option<Reached>>) -> Result<Self> {
        let gpu = arena.gpu().clone();
        let sizes = *arena.layout().sizes();
        let ports = |protocol| gpu.upload(&ports(&arena, &reached, protocol));
        let neighbour = |(rank, peer): (usize, &Option<Reached>)| match peer {
            Some(peer) => peer.neighbour(arena.layout()),
            None if rank == arena.rank() => arena.neighbour(),
            None => Neighbour { window: null_mut(), inbox: null_mut() },
        };
        let neighbours: Vec<Neighbour> = reached.iter().enumerate().map(neighbour).collect();
        Ok(Self {
            ports: [ports(Protocol::Slots)?, ports(Protocol::Lines)?],
            neighbours: gpu.upload(&neighbours)?,
            instances: gpu.alloc(sizes.channels)?,
            abort: gpu.pin(1)?,
            status: gpu.pin(1)?,
            kernels: Mutex::default(),
            arena,
            reached,
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

    /// Whether the arenas of all peers are reached, so that there can be windows.
    pub fn reaches_all(&self) -> bool {
        let rank = self.arena.rank();
        self.reached.iter().enumerate().all(|(peer, reached)| peer == rank || reached.is_some())
    }

    /// Ends all launches, those that wait and those that come.
    pub fn abort(&self) {
        self.abort.words()[0].store(1, Ordering::Release);
    }

    /// Why a launch ended early, if one did.
    pub fn status(&self) -> Status {
        self.status.get(0)
    }

    pub(super) fn used_by(&self, stream: &Stream) {
        self.arena.used_by(stream);
        self.reached.iter().flatten().for_each(|peer| peer.used_by(stream));
        self.ports.iter().for_each(|ports| ports.used_by(stream));
        self.neighbours.used_by(stream);
        self.instances.used_by(stream);
        self.abort.used_by(stream);
        self.status.used_by(stream);
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

fn ports(arena: &Arena, reached: &[Option<Reached>], protocol: Protocol) -> Vec<Port> {
    let nothing =
        || Fifo { slots: null_mut(), tail: null_mut(), head: null_mut(), slot_count: 1, slot_bytes: 0 };
    let port = |lane: usize, peer: usize| {
        let fifos = reached[peer].as_ref().map(|reached| arena.fifos(reached, protocol, lane, peer));
        let Fifos { out, into } = fifos.unwrap_or_else(|| Fifos { out: nothing(), into: nothing() });
        Port { out, into, sent: 0, received: 0 }
    };
    let lanes = 0..arena.layout().sizes().lanes();
    lanes
        .flat_map(|lane| (0..reached.len()).map(move |peer| (lane, peer)))
        .map(|(lane, peer)| port(lane, peer))
        .collect()
}
