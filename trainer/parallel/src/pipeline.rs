//! Pipelines as values: the operations of every rank, checked, timed and drawn before they run.
//!
//! A model is divided into *stages*. Rank `r` holds one *chunk* per stage that it runs, numbered
//! from 0, and [`Placement`] says which stages these are. A [`Schedule`] has one row of [`Op`]s per
//! rank. Building one does no I/O, reads no clock and knows neither the model nor the links.
//!
//! | step | function |
//! |---|---|
//! | choose an order and build its schedule | [`Order::find`], [`Order::schedule`] |
//! | prove that it is complete and cannot deadlock | [`check()`] |
//! | predict times and idle shares | [`play`] |
//! | divide units over stages | [`Split`] |
//! | translate a rank's row to visits of its units | [`Program`] |
//! | run it | [`run_program`] |
//! | draw it | [`draw::text`], [`draw::svg()`] |
//!
//! # Messages
//!
//! [`Op::Send`] stands right after the operation that produces the value. It starts the transfer
//! and gives its buffer away. [`Op::Receive`] stands right before the operation that needs the
//! value, and waits for the arrival. A stage that follows on the same rank needs no message.
//!
//! Messages of one [`Payload`] from one rank to another arrive in the order in which they were
//! sent, and are received in that order. They need no tag beyond the pair of ranks and the payload.
//! No schedule needs more than one message in transfer per pair and payload: one that would gets
//! a [`Op::Receive`] earlier, where its rank would wait forever otherwise.

pub mod check;
pub mod draw;
mod executor;
mod explain;
mod messages;
pub mod orders;
pub mod player;
pub mod program;
pub mod split;

pub use check::{Holdings, Violation, check};
pub use executor::{run_forward_program, run_program};
pub use explain::PipelineArgs;
pub use orders::Order;
pub use player::{StageCosts, Timeline, play};
pub use program::{Instruction, Message, Program};
pub use split::Split;

#[cfg(test)]
mod tests;

use std::fmt;

/// Value that one stage sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// Output of a forward pass, for the next stage.
    Activation,
    /// Gradient of the input, for the previous stage.
    Gradient,
}

/// Operation of one rank. `chunk` numbers the chunks of the rank whose row this is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Computes the output of a chunk.
    #[allow(missing_docs)]
    Forward { micro: usize, chunk: usize },
    /// Computes the gradients of the input and of the weights.
    #[allow(missing_docs)]
    Backward { micro: usize, chunk: usize },
    /// Computes the gradient of the input only.
    #[allow(missing_docs)]
    BackwardInput { micro: usize, chunk: usize },
    /// Computes the gradient of the weights, after [`Op::BackwardInput`] of the same.
    #[allow(missing_docs)]
    BackwardWeights { micro: usize, chunk: usize },
    /// Starts to send what the last pass of this micro-batch and chunk produced to rank `peer`.
    #[allow(missing_docs)]
    Send { what: Payload, micro: usize, chunk: usize, peer: usize },
    /// Waits for what the next pass of this micro-batch and chunk needs from rank `peer`.
    #[allow(missing_docs)]
    Receive { what: Payload, micro: usize, chunk: usize, peer: usize },
    /// Takes the optimizer's step. Last operation of every row.
    Step,
}

/// Assignment of stages to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Chunk `c` of rank `r` is stage `c * ranks + r`: the stages go round the ranks.
    Looped,
    /// Two chunks per rank: stages `r` and `2 * ranks - 1 - r`. They go down the ranks and back up.
    V,
}

/// Operations of all ranks in one step of the optimizer.
///
/// [`Order::schedule`] builds one. If you write `rows` yourself, [`check()`] says whether every
/// rank can end.
///
/// ```
/// use unisono_parallel::pipeline::{Op, Order, check};
///
/// let schedule = Order::find("1f1b")?.schedule(2, 4, 1)?;
/// assert_eq!(schedule.rows[1][1], Op::Forward { micro: 0, chunk: 0 });
/// // The first of two ranks holds activations of two micro-batches at most.
/// assert_eq!(check(&schedule).expect("complete").activations, [2, 1]);
/// # Ok::<(), unisono_nn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// P: number of ranks of the pipeline.
    pub ranks: usize,
    /// M: number of micro-batches per step, or of all their micro-sequences.
    pub micro_batches: usize,
    /// Number of micro-sequences per micro-batch: consecutive ones, which go forward in order and
    /// back in reverse order.
    pub micro_sequences: usize,
    /// V: number of chunks per rank.
    pub chunks: usize,
    /// Assignment of stages to ranks.
    pub placement: Placement,
    /// Operations of each rank, in order.
    pub rows: Vec<Vec<Op>>,
}

impl Schedule {
    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.ranks * self.chunks
    }

    /// Returns the micro-sequence that goes back as number `number`.
    fn backward_micro(&self, number: usize) -> usize {
        let part = number % self.micro_sequences;
        number - part + self.micro_sequences - 1 - part
    }

    /// Returns the stage that is chunk `chunk` of rank `rank`.
    pub fn stage(&self, rank: usize, chunk: usize) -> usize {
        match (self.placement, chunk) {
            (Placement::V, 1) => 2 * self.ranks - 1 - rank,
            _ => chunk * self.ranks + rank,
        }
    }

    /// Returns rank and chunk of a stage.
    pub fn location(&self, stage: usize) -> (usize, usize) {
        let (chunk, place) = (stage / self.ranks, stage % self.ranks);
        match (self.placement, chunk) {
            (Placement::V, 1) => (self.ranks - 1 - place, 1),
            _ => (place, chunk),
        }
    }

    /// Returns rank and chunk of the stage before, or `None` at the first stage.
    pub fn previous(&self, rank: usize, chunk: usize) -> Option<(usize, usize)> {
        self.stage(rank, chunk).checked_sub(1).map(|stage| self.location(stage))
    }

    /// Returns rank and chunk of the stage after, or `None` at the last stage.
    pub fn next(&self, rank: usize, chunk: usize) -> Option<(usize, usize)> {
        let stage = self.stage(rank, chunk) + 1;
        (stage < self.stages()).then(|| self.location(stage))
    }

    /// Returns the ranks in the order of a micro-batch's forward and backward pass. Players that go
    /// round in it need few rounds.
    fn rounds(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.ranks).chain((0..self.ranks).rev())
    }

    /// Returns the location that `what` comes from if it is another rank's.
    pub fn sender(&self, what: Payload, rank: usize, chunk: usize) -> Option<(usize, usize)> {
        let location = match what {
            Payload::Activation => self.previous(rank, chunk),
            Payload::Gradient => self.next(rank, chunk),
        };
        location.filter(|&(peer, _)| peer != rank)
    }

    /// Returns the location that `what` goes to if it is another rank's.
    pub fn receiver(&self, what: Payload, rank: usize, chunk: usize) -> Option<(usize, usize)> {
        let location = match what {
            Payload::Activation => self.next(rank, chunk),
            Payload::Gradient => self.previous(rank, chunk),
        };
        location.filter(|&(peer, _)| peer != rank)
    }
}

impl Op {
    /// Returns micro-batch and chunk, or `None` for [`Op::Step`].
    pub fn place(self) -> Option<(usize, usize)> {
        match self {
            Op::Forward { micro, chunk }
            | Op::Backward { micro, chunk }
            | Op::BackwardInput { micro, chunk }
            | Op::BackwardWeights { micro, chunk }
            | Op::Send { micro, chunk, .. }
            | Op::Receive { micro, chunk, .. } => Some((micro, chunk)),
            Op::Step => None,
        }
    }

    /// Returns the payload that the operation needs from the stage before or after.
    pub fn needs(self) -> Option<Payload> {
        match self {
            Op::Forward { .. } => Some(Payload::Activation),
            Op::Backward { .. } | Op::BackwardInput { .. } => Some(Payload::Gradient),
            _ => None,
        }
    }

    /// Returns true for a forward or backward pass.
    pub fn computes(self) -> bool {
        self.letter().is_some()
    }

    /// Returns the short name of a pass on a rank of `chunks` chunks.
    pub(crate) fn label(self, chunks: usize) -> Option<String> {
        let (letter, (micro, chunk)) = self.letter().zip(self.place())?;
        Some(if chunks > 1 { format!("{letter}{micro}.{chunk}") } else { format!("{letter}{micro}") })
    }

    /// Returns the letter of a pass: F, B for a whole backward, I and W for its halves.
    pub(crate) fn letter(self) -> Option<char> {
        match self {
            Op::Forward { .. } => Some('F'),
            Op::Backward { .. } => Some('B'),
            Op::BackwardInput { .. } => Some('I'),
            Op::BackwardWeights { .. } => Some('W'),
            Op::Send { .. } | Op::Receive { .. } | Op::Step => None,
        }
    }
}

/// Rows of passes, such as `F0 F1 B0`. With several chunks, `F0.1` is micro-batch 0 of chunk 1.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let passes: Vec<_> = row.iter().filter_map(|op| op.label(self.chunks)).collect();
            writeln!(f, "{}", passes.join(" "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Send { what, micro, chunk, peer } => {
                write!(f, "send {} of micro-batch {micro}, chunk {chunk} to {peer}", what.name())
            }
            Op::Receive { what, micro, chunk, peer } => {
                write!(f, "receive {} of micro-batch {micro}, chunk {chunk} from {peer}", what.name())
            }
            Op::Step => write!(f, "step"),
            Op::Forward { micro, chunk }
            | Op::Backward { micro, chunk }
            | Op::BackwardInput { micro, chunk }
            | Op::BackwardWeights { micro, chunk } => {
                write!(f, "{}{micro} of chunk {chunk}", self.letter().unwrap_or(' '))
            }
        }
    }
}

impl Payload {
    /// Both payloads.
    pub const ALL: [Self; 2] = [Self::Activation, Self::Gradient];

    fn name(self) -> &'static str {
        match self {
            Self::Activation => "activation",
            Self::Gradient => "gradient",
        }
    }
}
