//! Collective algorithms as values.
//!
//! A [`Program`] is the list of steps of one rank; a [`Schedule`] is the programs of all
//! ranks. Building one does no I/O, reads no clock and knows neither the size
//! of the data nor the transport. The checker, the engine, the printer and the
//! selector all read the same value.
//!
//! # Units
//!
//! *share*: the part of a buffer that belongs to one rank: the whole buffer in all_reduce, one part
//! for each rank in all_gather (see [`Collective::shares`]). It has as many elements as the caller
//! counts.
//!
//! *chunk*: a part of a share, which has [`Algorithm::chunks_per_share`] of them. Chunk
//! `share * chunks_per_share + part` is the smallest unit that a schedule names.
//!
//! *slice*: the part of a chunk that one pass of the program moves. Large data runs the program
//! once for each slice: pass `i` moves slice `i` of every chunk.

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
            Collective::Scan => "scan",
            Collective::ExScan => "exscan",
        }
    }

    /// Returns true if one rank, the root, is special.
    pub const fn has_root(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Returns true if elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
            || self.is_scan()
    }

    /// Returns true if a rank gets the reduction of the ranks below it, with its own input or
    /// without.
    pub const fn is_scan(self) -> bool {
        matches!(self, Collective::Scan | Collective::ExScan)
    }

    /// Shares of (input, output) at `rank`. Zero means that the rank has no such buffer.
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

/// The parameters that a schedule is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct GroupSpec {
    /// Number of ranks, at least 1.
    pub ranks: usize,
    /// The special rank, 0 where there is none.
    #[cfg_attr(feature = "serde", serde(default))]
    pub root: Rank,
    /// Chunks packed into one message, at most, by algorithms that aggregate (PAT). Others ignore
    /// it. PAT takes the largest power of two up to this number; with N ranks, it packs at most
    /// half of the smallest power of two that is N or more.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub aggregation: usize,
}

/// The number of chunks in a message, for files that do not say it.
#[cfg(feature = "serde")]
fn one() -> usize {
    1
}

impl GroupSpec {
    /// The parameters of a group of `ranks` ranks, whose root is rank 0 and whose algorithms pack
    /// no chunks together.
    pub const fn new(ranks: usize) -> Self {
        Self { ranks, root: 0, aggregation: 1 }
    }

    /// Sets the special rank.
    pub const fn with_root(self, root: Rank) -> Self {
        Self { root, ..self }
    }

    /// Sets the number of chunks that are packed into one message, at most.
    pub const fn with_aggregation(self, aggregation: usize) -> Self {
        Self { aggregation, ..self }
    }
}

/// A memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The caller's send buffer; never written. In place, it is the same memory as (a part of) the
    /// output.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Private memory for the length of one slice.
    Scratch,
    /// Memory that peers can reach, for the length of one slice.
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

/// A chunk somewhere: at this rank, in a peer's window, or, with [`PeerAccess::ZeroCopy`], in a
/// peer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct ChunkRef {
    /// The rank whose memory it is. [`Algorithm::peer_access`] limits it to what a rank may reach.
    pub rank: Rank,
    /// The chunk.
    pub chunk: Chunk,
}

/// One step of one rank. Steps of a lane program run one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum Step {
    /// One message with these chunks to `peer`.
    Send {
        /// The receiver.
        peer: Rank,
        /// The chunks that it carries, in this order.
        chunks: Vec<Chunk>,
    },
    /// One message from `peer`, stored into these chunks.
    Recv {
        /// The sender.
        peer: Rank,
        /// The chunks that its parts are stored in.
        into: Vec<Chunk>,
    },
    /// One message from `peer`, combined: `into[i] = with[i] ⊕ message[i]`.
    RecvReduce {
        /// The sender.
        peer: Rank,
        /// The operands of this rank.
        with: Vec<Chunk>,
        /// The chunks of the results; may equal `with`.
        into: Vec<Chunk>,
        /// True if the results are complete, so that the operation finishes (divides an average)
        /// here.
        #[cfg_attr(feature = "serde", serde(default))]
        finish: bool,
    },
    /// `into = from`. From a peer's window it is a *get*, into one a *put*.
    Copy {
        /// The source.
        from: ChunkRef,
        /// The target.
        into: ChunkRef,
    },
    /// `into = from[0] ⊕ from[1] ⊕ …` in one pass, in this order. A chunk of a window may be both
    /// the first operand and the target; then the result replaces it.
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

/// A lane program: steps in order, on one lane. Lane programs of one program run concurrently.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct LaneProgram {
    /// Lane of its messages and signals, 0 or 1. Messages of one pair of ranks in one direction
    /// keep their order on a lane. So two lane programs of a rank may use the same lane only if
    /// they do not both send to one peer, or both receive from one.
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
    /// Chunks of scratch memory it uses.
    #[cfg_attr(feature = "serde", serde(default))]
    pub scratch: usize,
    /// Chunks of its own window that it or its peers use.
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
/// number. Left out, a root, lane, scratch or window is 0, an aggregation 1, `finish` false, and
/// `peer_access` is `two_sided`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Schedule {
    /// The name of the algorithm that built it, which drawings show; it may be empty.
    #[cfg_attr(feature = "serde", serde(default))]
    pub algorithm: String,
    /// The collective that it computes.
    pub collective: Collective,
    /// The parameters that it was built from.
    pub spec: GroupSpec,
    /// Chunks that a share is cut into.
    pub chunks_per_share: usize,
    /// The memory of its peers that a rank may reach.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peer_access: PeerAccess,
    /// One program for each rank.
    pub programs: Vec<Program>,
}
