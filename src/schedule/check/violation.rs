//! What can be wrong with a schedule.

use crate::schedule::{Block, Rank, Space};
use std::fmt;

/// A step, by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// Whose program.
    pub rank: Rank,
    /// Which of its strands.
    pub strand: usize,
    /// Which step of that, from 0.
    pub step: usize,
}

/// Why a schedule is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The algorithm does not run with this spec.
    Unfit,
    /// Ranks, root, parts or sizes make no sense together; says which.
    Malformed(&'static str),
    /// One step does what it must not.
    Step {
        /// Which one.
        at: At,
        /// What it does.
        fault: Fault,
    },
    /// No rank can go on, yet these have steps left.
    Deadlock {
        /// Everybody who waits, and for what.
        blocked: Vec<Blocked>,
    },
    /// Messages that nobody receives.
    LeftOver {
        /// Who sent them.
        from: Rank,
        /// Who should have received them.
        to: Rank,
        /// On which lane.
        lane: usize,
        /// How many.
        messages: usize,
    },
    /// An output block does not hold what the collective promises.
    Output {
        /// Whose output.
        rank: Rank,
        /// Which block of it.
        index: usize,
        /// What is wrong with it.
        wrong: Wrong,
    },
    /// A rank can leave the barrier before another one has come.
    Barrier {
        /// Who leaves.
        rank: Rank,
        /// Who may be missing.
        missing: Rank,
    },
    /// A count is not the one that the algorithm states.
    Count {
        /// What is counted.
        what: &'static str,
        /// What the cost formula says.
        stated: u64,
        /// What the programs do.
        found: u64,
    },
}

/// A strand that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The step it stands before.
    pub at: At,
    /// Whom it waits for.
    pub peer: Rank,
    /// What it needs from that peer.
    pub needs: Need,
}

/// What a blocked strand needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A message on this lane.
    Message(usize),
    /// Room for a message on this lane.
    Room(usize),
    /// So many signals.
    Signals(u32),
}

/// What one step does wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A block that this rank does not have.
    NoSuchBlock(Rank, Block),
    /// A peer that is itself or nobody.
    NoSuchPeer(Rank),
    /// A lane other than 0 and 1.
    NoSuchLane(usize),
    /// Memory of another rank that is no window.
    NotReachable(Rank, Block),
    /// A message taken from or put into a window.
    WindowMessage(Block),
    /// A block is read that holds nothing.
    Empty(Rank, Block),
    /// The input is read after its memory was overwritten in place.
    InputOverwritten(Block),
    /// The send buffer is written.
    InputWritten(Block),
    /// A block is written twice by the step, or written before the step reads it.
    Overlap(Block),
    /// A collective that only moves data combines or finishes.
    Combines,
    /// A reduction of nothing.
    NoOperands,
    /// The message has `.0` blocks, the receiver's lists `.1` and `.2`.
    MessageBlocks(usize, usize, usize),
    /// Values of different lengths are combined, or received into scratch together.
    MixedLengths,
    /// A value is put into a caller's block of another length.
    WrongLength(Block),
    /// Nothing in the step says how long its blocks are.
    UnknownLength,
    /// Two strands share the messages of one peer, lane and direction.
    SharedChannel(Rank),
    /// Two strands signal on one lane.
    SharedSignals,
    /// A wait for signal 0 asks for nothing.
    WaitsForNothing,
    /// Another step touches the same block, and nothing orders the two.
    Race {
        /// Whose memory.
        rank: Rank,
        /// Which block.
        block: Block,
        /// The other step.
        other: At,
    },
}

/// How an output block differs from what was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Nothing was stored.
    Missing,
    /// It is not the input block of the rank it should be.
    NotTheInput,
    /// The input of this rank is not in the sum.
    Without(Rank),
    /// The input of this rank is in the sum more than once.
    Twice(Rank),
    /// The sum contains another block's input, of this rank.
    Foreign(Rank),
    /// The sum was never finished.
    NotFinished,
    /// A part of the sum was finished before the whole.
    FinishedEarly,
    /// It is not the same expression as at this rank: bits may differ.
    DiffersFrom(Rank),
}

impl std::error::Error for Violation {}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} strand {} step {}", self.rank, self.strand, self.step)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Unfit => write!(f, "the algorithm does not fit these ranks"),
            Violation::Malformed(what) => write!(f, "malformed: {what}"),
            Violation::Step { at, fault } => write!(f, "{at} {fault}"),
            Violation::Deadlock { blocked } => {
                write!(f, "deadlock:")?;
                for (index, strand) in blocked.iter().enumerate() {
                    write!(f, "{} {strand}", if index > 0 { ";" } else { "" })?;
                }
                Ok(())
            }
            Violation::LeftOver { from, to, lane, messages } => {
                write!(f, "{messages} messages from rank {from} to {to} on lane {lane} are never received")
            }
            Violation::Output { rank, index, wrong } => {
                write!(f, "output block {index} of rank {rank} {wrong}")
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
        let Blocked { at, peer, needs } = self;
        match needs {
            Need::Message(lane) => write!(f, "{at} waits for a message of rank {peer} on lane {lane}"),
            Need::Room(lane) => write!(f, "{at} waits for room towards rank {peer} on lane {lane}"),
            Need::Signals(signals) => write!(f, "{at} waits for signal {signals} of rank {peer}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NoSuchBlock(rank, block) => write!(f, "names {block}, which rank {rank} does not have"),
            Fault::NoSuchPeer(peer) => write!(f, "names rank {peer} as its peer"),
            Fault::NoSuchLane(lane) => write!(f, "runs on lane {lane}"),
            Fault::NotReachable(rank, block) => {
                write!(f, "reaches for {block} of rank {rank}, which is no window")
            }
            Fault::WindowMessage(block) => write!(f, "has {block} in a message"),
            Fault::Empty(rank, block) => write!(f, "reads {block} of rank {rank}, which holds nothing"),
            Fault::InputOverwritten(block) => write!(f, "reads {block} after it was overwritten in place"),
            Fault::InputWritten(block) => write!(f, "writes {block}"),
            Fault::Overlap(block) => write!(f, "uses {block} more than once"),
            Fault::Combines => write!(f, "combines or finishes in a collective that only moves data"),
            Fault::NoOperands => write!(f, "reduces nothing"),
            Fault::MessageBlocks(sent, with, into) => {
                write!(f, "receives {sent} blocks with {with} operands into {into} blocks")
            }
            Fault::MixedLengths => write!(f, "mixes blocks of different lengths"),
            Fault::WrongLength(block) => write!(f, "stores a value of another length into {block}"),
            Fault::UnknownLength => write!(f, "moves blocks whose length nothing tells"),
            Fault::SharedChannel(peer) => {
                write!(f, "shares its messages with rank {peer} with another strand")
            }
            Fault::SharedSignals => write!(f, "signals on a lane where another strand signals"),
            Fault::WaitsForNothing => write!(f, "waits for signal 0"),
            Fault::Race { rank, block, other } => {
                write!(f, "touches {block} of rank {rank} in no order with {other}")
            }
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Missing => write!(f, "holds nothing"),
            Wrong::NotTheInput => write!(f, "holds the wrong input"),
            Wrong::Without(rank) => write!(f, "lacks the input of rank {rank}"),
            Wrong::Twice(rank) => write!(f, "has the input of rank {rank} twice"),
            Wrong::Foreign(rank) => write!(f, "has another block's input of rank {rank}"),
            Wrong::NotFinished => write!(f, "was not finished"),
            Wrong::FinishedEarly => write!(f, "was finished before it was complete"),
            Wrong::DiffersFrom(rank) => write!(f, "is summed in another order than at rank {rank}"),
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.space {
            Space::Input => "in",
            Space::Output => "out",
            Space::Scratch => "tmp",
            Space::Window => "win",
        };
        f.pad(&format!("{space}{}", self.index))
    }
}
