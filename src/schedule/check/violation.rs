//! The violations that a schedule can have.

use crate::schedule::{Chunk, ChunkRef, Rank};
use std::fmt;

/// The position of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepLocation {
    /// The rank of the program.
    pub rank: Rank,
    /// The lane program.
    pub lane_program: usize,
    /// The step of the lane program, from 0.
    pub step: usize,
}

/// The reason why a schedule is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The algorithm does not run with this spec.
    UnsupportedGroup,
    /// Ranks, root, chunks or sizes do not fit together. The text says which of them.
    Malformed(&'static str),
    /// One step is invalid.
    Step {
        /// The step.
        at: StepLocation,
        /// The violation.
        error: StepError,
    },
    /// No rank can go on, although these lane programs have steps left.
    Deadlock {
        /// The lane programs that wait, with the condition for which each waits.
        blocked: Vec<Blocked>,
    },
    /// Messages that no rank receives.
    UnreceivedMessages {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The lane.
        lane: usize,
        /// The number of messages.
        messages: usize,
    },
    /// An output chunk does not hold what the collective promises.
    Output {
        /// The rank of the output.
        rank: Rank,
        /// The chunk.
        index: usize,
        /// The difference.
        error: OutputError,
        /// The fate of the input that the output lacks, if it is known.
        fate: Option<InputFate>,
    },
    /// A rank can leave the barrier before another one has entered.
    Barrier {
        /// The rank that leaves.
        rank: Rank,
        /// The rank that may be missing.
        missing: Rank,
    },
    /// A count is not the one that the algorithm states.
    Count {
        /// The counted quantity.
        what: &'static str,
        /// The count of the cost formula.
        stated: u64,
        /// The count of the programs.
        found: u64,
    },
}

/// A lane program that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The step that the lane program cannot begin.
    pub at: StepLocation,
    /// The rank for which the lane program waits.
    pub peer: Rank,
    /// The condition that the peer must fulfill.
    pub blocked_on: BlockedOn,
}

/// The condition for which a blocked lane program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockedOn {
    /// A message on this lane.
    Message(usize),
    /// Room for a message on this lane.
    SendSlot(usize),
    /// This number of signals.
    Signals(u32),
}

/// The violation of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// The rank does not have this chunk.
    NoSuchChunk(Rank, Chunk),
    /// The peer is the rank itself, or is not a rank of the group.
    NoSuchPeer(Rank),
    /// The lane is neither 0 nor 1.
    NoSuchLane(usize),
    /// The chunk is memory of another rank that is not a window.
    NotReachable(Rank, Chunk),
    /// A message is taken from a window or stored into one.
    WindowInMessage(Chunk),
    /// A chunk is read that holds no value.
    Uninitialized(Rank, Chunk),
    /// The input is read after its memory was overwritten in place.
    InputOverwritten(Chunk),
    /// The send buffer is written.
    InputWritten(Chunk),
    /// A chunk is written twice by the step, or written before the step reads it.
    Overlap(Chunk),
    /// A collective that only moves data combines or finishes.
    UnexpectedReduction,
    /// A reduction has no operands.
    NoOperands,
    /// The message has `.0` chunks, but the receiver's lists have `.1` and `.2`.
    ChunkCountMismatch(usize, usize, usize),
    /// Values of different lengths are combined, or received into scratch together.
    MixedLengths,
    /// A value is stored into a caller's chunk of another length.
    LengthMismatch(Chunk),
    /// The lengths of the step's chunks do not follow from anything in the step.
    UnknownLength,
    /// Two lane programs share the messages of one peer, lane and direction.
    SharedChannel(Rank),
    /// Two lane programs signal on one lane.
    SharedSignals,
    /// A wait for 0 signals has no effect.
    WaitForSignalZero,
    /// Another step touches the same chunk, and nothing orders the two.
    Race {
        /// The rank of the memory.
        rank: Rank,
        /// The chunk.
        chunk: Chunk,
        /// The other step.
        other: StepLocation,
    },
}

/// The difference between an output chunk and its postcondition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputError {
    /// Nothing was stored.
    Missing,
    /// The output holds a different input chunk, or that of a different rank.
    WrongInput,
    /// The input of this rank is not in the sum.
    MissingInput(Rank),
    /// The input of this rank is in the sum more than once.
    DuplicateInput(Rank),
    /// The sum contains another chunk's input, of this rank.
    ForeignInput(Rank),
    /// The sum was never finished.
    NotFinished,
    /// A part of the sum was finished before the whole.
    FinishedTooEarly,
    /// The output is another expression than on this rank, so bits may differ.
    DiffersFrom(Rank),
}

/// The fate of an input that an output lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputFate {
    /// No step reads the input in the place where it was stored last.
    NeverRead {
        /// The chunk that holds the input.
        place: ChunkRef,
        /// The step that stored it there; none if it is the caller's input.
        stored_by: Option<StepLocation>,
    },
    /// A step stores another value in the place of the input before any step reads it there.
    Overwritten {
        /// The chunk that held the input.
        place: ChunkRef,
        /// The step that stored it there; none if it is the caller's input.
        stored_by: Option<StepLocation>,
        /// The step that overwrites the input.
        by: StepLocation,
    },
    /// The input arrives at these ranks and is sent to no other rank.
    ReachesOnly(Vec<Rank>),
}

impl InputFate {
    /// Returns the step to look at first, if one is known.
    pub fn step(&self) -> Option<StepLocation> {
        match *self {
            InputFate::NeverRead { stored_by, .. } => stored_by,
            InputFate::Overwritten { by, .. } => Some(by),
            InputFate::ReachesOnly(_) => None,
        }
    }
}

impl Violation {
    /// Returns the steps to look at: the invalid step, the steps that wait, or the step where an
    /// input is lost.
    pub fn steps(&self) -> Vec<StepLocation> {
        match self {
            Violation::Step { at, error: StepError::Race { other, .. } } => vec![*at, *other],
            Violation::Step { at, .. } => vec![*at],
            Violation::Deadlock { blocked } => blocked.iter().map(|blocked| blocked.at).collect(),
            Violation::Output { fate: Some(fate), .. } => fate.step().into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl std::error::Error for Violation {}

impl fmt::Display for InputFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = |f: &mut fmt::Formatter<'_>, place: &ChunkRef, stored_by: &Option<StepLocation>| {
            let ChunkRef { rank, chunk } = place;
            match stored_by {
                Some(at) => write!(f, "{at} stored that input in {chunk} of rank {rank}"),
                None => write!(f, "that input is {chunk} of rank {rank}"),
            }
        };
        match self {
            InputFate::NeverRead { place, stored_by } => {
                held(f, place, stored_by)?;
                write!(f, ", and no step reads it there")
            }
            InputFate::Overwritten { place, stored_by, by } => {
                held(f, place, stored_by)?;
                write!(f, ", and {by} overwrites it before a step reads it there")
            }
            InputFate::ReachesOnly(ranks) => {
                let shown: Vec<_> = ranks.iter().take(RANKS_SHOWN_MAX).map(ToString::to_string).collect();
                let more = if ranks.len() > shown.len() { " and others" } else { "" };
                write!(f, "that input arrives at rank {}{more} only", shown.join(", "))
            }
        }
    }
}

/// Largest number of ranks that a violation lists.
const RANKS_SHOWN_MAX: usize = 8;

impl fmt::Display for StepLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} lane program {} step {}", self.rank, self.lane_program, self.step)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::UnsupportedGroup => write!(f, "the algorithm does not support this group"),
            Violation::Malformed(what) => write!(f, "malformed: {what}"),
            Violation::Step { at, error: fault } => write!(f, "{at} {fault}"),
            Violation::Deadlock { blocked } => {
                write!(f, "deadlock:")?;
                for (index, lane_program) in blocked.iter().enumerate() {
                    write!(f, "{} {lane_program}", if index > 0 { ";" } else { "" })?;
                }
                Ok(())
            }
            Violation::UnreceivedMessages { from, to, lane, messages } => {
                write!(f, "{messages} messages from rank {from} to {to} on lane {lane} are never received")
            }
            Violation::Output { rank, index, error, fate } => {
                write!(f, "output chunk {index} of rank {rank} {error}")?;
                fate.as_ref().map_or(Ok(()), |fate| write!(f, "; {fate}"))
            }
            Violation::Barrier { rank, missing } => {
                write!(f, "rank {rank} can leave the barrier before rank {missing} has come")
            }
            Violation::Count { what, stated, found } => {
                write!(f, "{what}: {found}, but the algorithm states {stated}")
            }
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Blocked { at, peer, blocked_on: needs } = self;
        match needs {
            BlockedOn::Message(lane) => write!(f, "{at} waits for a message of rank {peer} on lane {lane}"),
            BlockedOn::SendSlot(lane) => {
                write!(f, "{at} waits for a send slot to rank {peer} on lane {lane}")
            }
            BlockedOn::Signals(signals) => write!(f, "{at} waits for signal {signals} of rank {peer}"),
        }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepError::NoSuchChunk(rank, chunk) => {
                write!(f, "names {chunk}, which rank {rank} does not have")
            }
            StepError::NoSuchPeer(peer) => write!(f, "names rank {peer} as its peer"),
            StepError::NoSuchLane(lane) => write!(f, "runs on lane {lane}"),
            StepError::NotReachable(rank, chunk) => {
                write!(f, "reaches for {chunk} of rank {rank}, which is no window")
            }
            StepError::WindowInMessage(chunk) => write!(f, "has {chunk} in a message"),
            StepError::Uninitialized(rank, chunk) => {
                write!(f, "reads {chunk} of rank {rank}, which holds nothing")
            }
            StepError::InputOverwritten(chunk) => {
                write!(f, "reads {chunk} after it was overwritten in place")
            }
            StepError::InputWritten(chunk) => write!(f, "writes {chunk}"),
            StepError::Overlap(chunk) => write!(f, "uses {chunk} more than once"),
            StepError::UnexpectedReduction => {
                write!(f, "reduces or finishes in a collective that only moves data")
            }
            StepError::NoOperands => write!(f, "reduces nothing"),
            StepError::ChunkCountMismatch(sent, with, into) => {
                write!(f, "receives {sent} chunks with {with} operands into {into} chunks")
            }
            StepError::MixedLengths => write!(f, "mixes chunks of different lengths"),
            StepError::LengthMismatch(chunk) => write!(f, "stores a value of another length into {chunk}"),
            StepError::UnknownLength => write!(f, "moves chunks whose length nothing tells"),
            StepError::SharedChannel(peer) => {
                write!(f, "shares its messages with rank {peer} with another lane program")
            }
            StepError::SharedSignals => write!(f, "signals on a lane where another lane program signals"),
            StepError::WaitForSignalZero => write!(f, "waits for signal 0"),
            StepError::Race { rank, chunk, other } => {
                write!(f, "touches {chunk} of rank {rank} in no order with {other}")
            }
        }
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutputError::Missing => write!(f, "holds nothing"),
            OutputError::WrongInput => write!(f, "holds the wrong input"),
            OutputError::MissingInput(rank) => write!(f, "lacks the input of rank {rank}"),
            OutputError::DuplicateInput(rank) => write!(f, "has the input of rank {rank} twice"),
            OutputError::ForeignInput(rank) => write!(f, "has another chunk's input of rank {rank}"),
            OutputError::NotFinished => write!(f, "was not finished"),
            OutputError::FinishedTooEarly => write!(f, "was finished before it was complete"),
            OutputError::DiffersFrom(rank) => write!(f, "is summed in another order than at rank {rank}"),
        }
    }
}
