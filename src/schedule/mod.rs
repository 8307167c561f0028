//! Collective algorithms as values.
//!
//! A [`Program`] is the list of steps of one rank, and a [`Schedule`] has the programs of all
//! ranks. Code that builds a schedule does no I/O, reads no clock, and knows neither the size of
//! the data nor the transport. The checker, the engine, the printer and the selector all read this
//! value.
//!
//! # Units
//!
//! A *share* is the part of a buffer that belongs to one rank. In all_reduce, the whole buffer is
//! one share. In all_gather, the output has one share for each rank (see [`Collective::shares`]).
//! The count of a call is the number of elements of a share.
//!
//! A *chunk* is a part of a share, which is cut into [`Algorithm::chunks_per_share`] chunks. Chunk
//! `share * chunks_per_share + part` is the smallest unit that a schedule names.
//!
//! A *slice* is the part of a chunk that one pass of the program moves. For large data, the program
//! runs once for each slice, and pass `i` moves slice `i` of every chunk.

mod algorithm;
pub mod algorithms;
mod builder;
pub mod check;
mod chunk_text;
pub mod draw;
mod embed;
pub(crate) mod lower;
#[cfg(feature = "gpu")]
mod permute;
mod registry;

pub use crate::schedule::builder::{ProgramBuilder, chunk_at, input, output, scratch, window};
#[cfg(feature = "gpu")]
pub(crate) use crate::schedule::permute::permuted;
pub use algorithm::{Algorithm, CombineOrder, Complexity, OfGroup, PeerAccess};
pub use embed::Embedding;
pub(crate) use registry::add as register;
pub use registry::find;

/// Number of a rank in its communicator.
pub type Rank = usize;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
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
    Scan,
    #[cfg_attr(feature = "serde", serde(rename = "exscan"))]
    ExScan,
}

impl Collective {
    /// Every collective, in the order of their codes.
    pub const ALL: [Collective; 11] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
        Collective::Scan,
        Collective::ExScan,
    ];

    /// Returns the name, as in the API.
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
            Collective::Scan => "scan",
            Collective::ExScan => "exscan",
        }
    }

    /// Returns true if the collective has a root.
    pub const fn has_root(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Returns true if the collective combines elements.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
            || self.is_scan()
    }

    /// Returns true if a rank gets the reduction of the ranks below it, with or without its own
    /// input.
    pub const fn is_scan(self) -> bool {
        matches!(self, Collective::Scan | Collective::ExScan)
    }

    /// Returns the numbers of shares in the input and in the output of `rank`. Zero means that the
    /// rank has no such buffer.
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
            Collective::Scan => (1, 1),
            // No rank is below the first one.
            Collective::ExScan => (1, if rank > 0 { 1 } else { 0 }),
        }
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The parameters from which a schedule is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct GroupSpec {
    /// Number of ranks, at least 1.
    pub ranks: usize,
    /// The root, which is 0 for collectives without a root.
    #[cfg_attr(feature = "serde", serde(default))]
    pub root: Rank,
    /// The largest number of chunks that an algorithm packs into one message. Only PAT uses it, and
    /// other algorithms ignore it. PAT takes the largest power of two up to this number. With N
    /// ranks, it packs at most half of the smallest power of two that is not below N.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub aggregation: usize,
}

/// Returns the number of chunks in a message for files that do not give it.
#[cfg(feature = "serde")]
fn one() -> usize {
    1
}

impl GroupSpec {
    /// Returns the parameters of a group of `ranks` ranks, with root 0 and one chunk in each
    /// message.
    pub const fn new(ranks: usize) -> Self {
        Self { ranks, root: 0, aggregation: 1 }
    }

    /// Sets the root.
    pub const fn with_root(self, root: Rank) -> Self {
        Self { root, ..self }
    }

    /// Sets the largest number of chunks that are packed into one message.
    pub const fn with_aggregation(self, aggregation: usize) -> Self {
        Self { aggregation, ..self }
    }
}

/// A memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The caller's send buffer, which is never written. In place, it is the same memory as the
    /// output or as a part of the output.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Private memory of the rank. Its contents last for one slice.
    Scratch,
    /// Memory that peers can access. Its contents last for one slice.
    Window,
}

/// One chunk of one rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Chunk {
    /// The memory.
    pub space: Space,
    /// The chunk.
    pub index: u32,
}

/// A chunk of this rank or of a peer. A peer's chunk is in its window or, with
/// [`PeerAccess::ZeroCopy`], in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct ChunkRef {
    /// The rank that owns the memory. [`Algorithm::peer_access`] says which memory of peers a rank
    /// can access.
    pub rank: Rank,
    /// The chunk.
    pub chunk: Chunk,
}

/// One step of one rank. Steps of a lane program run one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum Step {
    /// Sends one message with these chunks to `peer`.
    Send {
        /// The receiver.
        peer: Rank,
        /// The chunks that it carries, in this order.
        chunks: Vec<Chunk>,
    },
    /// Receives one message from `peer` and stores it into these chunks.
    Recv {
        /// The sender.
        peer: Rank,
        /// The chunks into which the parts of the message are stored.
        into: Vec<Chunk>,
    },
    /// Receives one message from `peer` and combines it: `into[i] = with[i] ⊕ message[i]`.
    RecvReduce {
        /// The sender.
        peer: Rank,
        /// The operands of this rank.
        with: Vec<Chunk>,
        /// The chunks of the results, which may be the same as `with`.
        into: Vec<Chunk>,
        /// True if the results are complete, so that this step finishes them, for example divides
        /// an average.
        #[cfg_attr(feature = "serde", serde(default))]
        finish: bool,
    },
    /// Copies `from` to `into`. A copy from a peer's window is a *get*, and a copy into a peer's
    /// window is a *put*.
    Copy {
        /// The source.
        from: ChunkRef,
        /// The target.
        into: ChunkRef,
    },
    /// `into = from[0] ⊕ from[1] ⊕ …` in one pass, in this order. A chunk of a window may be both
    /// the first operand and the target. Then the result replaces the operand.
    Reduce {
        /// The operands, at least one.
        from: Vec<ChunkRef>,
        /// The chunk of the result.
        into: ChunkRef,
        /// True if the result is complete.
        #[cfg_attr(feature = "serde", serde(default))]
        finish: bool,
    },
    /// Tells every rank that all earlier steps of this lane program are done.
    Signal,
    /// Waits until `peer`'s lane program of the same lane has signaled `signals` times in this
    /// slice.
    Wait {
        /// The rank that must have signaled.
        peer: Rank,
        /// The number of signals, from 1.
        signals: u32,
    },
}

/// A list of steps that run in order, on one lane. The lane programs of one program run
/// concurrently.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct LaneProgram {
    /// Lane of its messages and signals, 0 or 1. Messages of one pair of ranks in one direction
    /// keep their order on a lane. So two lane programs of a rank may share a lane only if they do
    /// not both send to the same peer, and do not both receive from the same peer.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lane: usize,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The steps of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Program {
    /// The concurrent lane programs.
    pub lane_programs: Vec<LaneProgram>,
    /// Number of chunks of scratch memory that the program uses.
    #[cfg_attr(feature = "serde", serde(default))]
    pub scratch: usize,
    /// Number of chunks of this rank's window that the rank or its peers use.
    #[cfg_attr(feature = "serde", serde(default))]
    pub window: usize,
}

/// The programs of all ranks.
///
/// With the feature `serde`, a schedule is read from a file, for example one that a solver wrote:
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use unisono::schedule::check::{Options, check_schedule};
/// use unisono::schedule::Schedule;
///
/// let text = r#"{
///     "collective": "all_reduce", "spec": { "ranks": 2 }, "chunks_per_share": 1,
///     "programs": [
///         { "lane_programs": [{ "steps": [
///             { "send": { "peer": 1, "chunks": ["in0"] } },
///             { "recv_reduce": { "peer": 1, "with": ["in0"], "into": ["out0"], "finish": true } }
///         ] }] },
///         { "lane_programs": [{ "steps": [
///             { "send": { "peer": 0, "chunks": ["in0"] } },
///             { "recv_reduce": { "peer": 0, "with": ["in0"], "into": ["out0"], "finish": true } }
///         ] }] }
///     ]
/// }"#;
/// let schedule: Schedule = serde_json::from_str(text).unwrap();
/// assert_eq!(check_schedule(&schedule, &Options::default()).unwrap().chunks, 2);
/// # }
/// ```
///
/// A chunk is written as its memory (`in`, `out`, `tmp` for scratch, `win` for a window) and its
/// number. Fields can be left out: root, lane, scratch and window are then 0, the aggregation is 1,
/// `finish` is false, and `peer_access` is `two_sided`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Schedule {
    /// The name of the algorithm that built the schedule. Drawings show it, and it may be empty.
    #[cfg_attr(feature = "serde", serde(default))]
    pub algorithm: String,
    /// The collective that the schedule computes.
    pub collective: Collective,
    /// The parameters from which the schedule was built.
    pub spec: GroupSpec,
    /// Number of chunks into which a share is cut.
    pub chunks_per_share: usize,
    /// The memory of its peers that a rank can access.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peer_access: PeerAccess,
    /// One program for each rank.
    pub programs: Vec<Program>,
}
