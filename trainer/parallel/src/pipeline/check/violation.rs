//! The rules that a schedule can break.

use crate::pipeline::{Op, Payload};
use std::fmt;
use unisono_nn::error::Error;

/// Reason why a schedule is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Dimensions and rows do not fit together.
    #[error("{0}")]
    Malformed(&'static str),
    /// One operation breaks a rule.
    #[error("{at}: {fault}")]
    Op {
        /// The operation.
        at: OpLocation,
        /// The rule.
        fault: Fault,
    },
    /// A row ends without [`Op::Step`].
    #[error("rank {0} takes no step")]
    NoStep(usize),
    /// No rank can go on, and these have operations left.
    #[error("deadlock: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Deadlock(Vec<OpLocation>),
}

/// Position of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpLocation {
    /// Rank of the row.
    pub rank: usize,
    /// Number in the row, from 0.
    pub index: usize,
    /// The operation.
    pub op: Op,
}

/// Rule that an operation breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("there is no such micro-batch or chunk")]
    NoSuchPlace,
    #[error("it was done before")]
    Repeated,
    #[error("its {} has not come", .0.name())]
    NoOperand(Payload),
    #[error("its forward pass has not run")]
    NoForward,
    #[error("the micro-sequence before it, in its direction, has not run")]
    NoMicroSequence,
    #[error("the gradient of its input has not been computed")]
    NoBackwardInput,
    #[error("the pass that produces it has not run")]
    NothingToSend,
    #[error("{}", match .0 { Some(rank) => format!("its peer is rank {rank}"), None => "it is no message".to_owned() })]
    WrongPeer(Option<usize>),
    #[error("micro-batch {micro} for stage {stage} comes first")]
    OutOfOrder { micro: usize, stage: usize },
    #[error("operations follow it")]
    StepBeforeEnd,
    #[error("micro-batch {micro} of chunk {chunk} has not been through {lacks}")]
    Unfinished { micro: usize, chunk: usize, lacks: &'static str },
}

impl fmt::Display for OpLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} operation {} ({})", self.rank, self.index, self.op)
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::invalid(format!("invalid pipeline schedule: {violation}"))
    }
}
