//! A collective algorithm as a value.
//!
//! A [`Program`] is what one rank does; a [`Schedule`] is the programs of all
//! ranks. Building one does no I/O, reads no clock and knows neither the size
//! of the data nor the transport. The checker, the engine, the printer and the
//! selector all read the same value.
//!
//! # Units
//!
//! *share*: what the caller counts. A buffer is one share, or one per rank
//! (see [`Collective::shares`]). *chunk*: a share is cut into
//! [`Algorithm::parts`] chunks; chunk `share * parts + part` is the smallest
//! thing a schedule names. *slice*: the piece of a chunk that one pass moves.
//! Large data runs the same program again and again, once for each *piece*: the
//! i-th slice of every chunk.

mod algorithm;
pub mod algorithms;
mod builder;
pub mod check;
pub mod draw;
#[cfg(feature = "gpu")]
mod permute;

pub use crate::schedule::builder::{ProgramBuilder, chunk_at, input, output, scratch, window};
#[cfg(feature = "gpu")]
pub(crate) use crate::schedule::permute::permuted;
pub use algorithm::{Algorithm, Complexity, PeerAccess, find};

/// Number of a rank in its communicator.
pub type Rank = usize;

/// What the ranks want done together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
}

impl Collective {
    /// Every collective, in the order of their codes.
    pub const ALL: [Collective; 9] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
    ];

    /// The name, as in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Barrier => "barrier",
        }
    }

    /// Whether one rank is special.
    pub const fn has_root(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Whether elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }

    /// Shares of (input, output) at `rank`. Zero: that rank has no such buffer.
    pub const fn shares(self, ranks: usize, root: Rank, rank: Rank) -> (usize, usize) {
        let at_root = rank == root;
        match self {
            Collective::AllReduce => (1, 1),
            Collective::AllGather => (1, ranks),
            Collective::ReduceScatter => (ranks, 1),
            Collective::Broadcast => (if at_root { 1 } else { 0 }, 1),
            Collective::Reduce => (1, if at_root { 1 } else { 0 }),
            Collective::Gather => (1, if at_root { ranks } else { 0 }),
            Collective::Scatter => (if at_root { ranks } else { 0 }, 1),
            Collective::AllToAll => (ranks, ranks),
            Collective::Barrier => (0, 0),
        }
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What a schedule is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// Number of ranks, at least 1.
    pub ranks: usize,
    /// The special rank, 0 where there is none.
    pub root: Rank,
    /// Chunks packed into one message, at most, by algorithms that aggregate (PAT): rounded down
    /// to a power of two, and cut to half of the ranks, those rounded up to one. Others ignore it.
    pub aggregation: usize,
}

/// Which of a rank's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The caller's send buffer; never written. In place, it is the same memory as (a part of) the output.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Private memory for the length of one piece.
    Scratch,
    /// Memory that peers can reach, for the length of one piece.
    Window,
}

/// One chunk of one rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk {
    /// Which memory.
    pub space: Space,
    /// Which chunk of it.
    pub index: u32,
}

/// A chunk somewhere: at this rank, in a peer's window, or, with [`PeerAccess::Buffers`], in a peer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRef {
    /// Whose memory. What may be named of another rank's, [`Algorithm::reach`] says.
    pub rank: Rank,
    /// Which chunk of it.
    pub chunk: Chunk,
}

/// One step of one rank. Steps of a strand run one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// One message with these chunks to `peer`.
    Send {
        /// Who receives it.
        peer: Rank,
        /// What it carries, in this order.
        chunks: Vec<Chunk>,
    },
    /// One message from `peer`, stored into these chunks.
    Recv {
        /// Who sent it.
        peer: Rank,
        /// Where its parts go.
        into: Vec<Chunk>,
    },
    /// One message from `peer`, combined: `into[i] = with[i] ⊕ message[i]`.
    RecvReduce {
        /// Who sent it.
        peer: Rank,
        /// The operands at home.
        with: Vec<Chunk>,
        /// Where the results go; may equal `with`.
        into: Vec<Chunk>,
        /// Whether the results are complete: the operation's last act (dividing an average) happens here.
        finish: bool,
    },
    /// `into = from`. From a peer's window it is a *get*, into one a *put*.
    Copy {
        /// What is copied.
        from: ChunkRef,
        /// Where to.
        into: ChunkRef,
    },
    /// `into = from[0] ⊕ from[1] ⊕ …` in one pass, in this order; into a window in place, if `into` is the first of them.
    Reduce {
        /// The operands, at least one.
        from: Vec<ChunkRef>,
        /// Where the result goes.
        into: ChunkRef,
        /// Whether the result is complete.
        finish: bool,
    },
    /// Tells every rank that all steps of this strand so far are done here.
    Signal,
    /// Waits until `peer`'s strand of the same lane has signalled `signals` times in this piece.
    Wait {
        /// Who must have signalled.
        peer: Rank,
        /// How often, from 1.
        signals: u32,
    },
}

/// Steps in order, on a lane of their own: strands of one program run concurrently.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneProgram {
    /// Lane of its messages and signals; no two strands of a program share one,
    /// unless each pair of peer and direction appears in one of them only.
    pub lane: usize,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Program {
    /// Its concurrent strands.
    pub lane_programs: Vec<LaneProgram>,
    /// Chunks of scratch memory it uses.
    pub scratch: usize,
    /// Chunks of its own window that it or its peers use.
    pub window: usize,
}

/// What all ranks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it computes.
    pub collective: Collective,
    /// What it was built from.
    pub spec: GroupSpec,
    /// Chunks that a share is cut into.
    pub chunks_per_share: usize,
    /// Which memory of its peers a rank may reach.
    pub peer_access: PeerAccess,
    /// One program for each rank.
    pub programs: Vec<Program>,
}
