//! Orders of passes: one file and one row of a table each.
//!
//! Every order adds the gradients of a chunk's weights in the order of the micro-batches, so that
//! all of them round sums equally.

mod breadth_first;
mod gpipe;
mod interleaved;
mod naive;
mod one_forward_one_backward;
mod zero_bubble_h1;
mod zero_bubble_v;

use crate::pipeline::{Op, Placement, Schedule, StageCosts, messages};
use std::ops::RangeInclusive;
use unisono_nn::error::{Error, Result};

/// Order in which ranks run forward and backward passes: a row of plain functions.
pub struct Order {
    /// Name in configurations and commands.
    pub name: &'static str,
    /// One line: the idea, and its price.
    pub summary: &'static str,
    /// Publication that describes the order.
    pub source: &'static str,
    /// Assignment of stages to ranks.
    pub placement: Placement,
    /// Valid numbers of chunks per rank.
    pub chunks: RangeInclusive<usize>,
    /// True if the number of micro-batches must be a multiple of the number of ranks. If they have
    /// several micro-sequences, a round is the fewest whole micro-batches with at least one
    /// micro-sequence per rank.
    pub whole_rounds: bool,
    /// Passes of one rank for the dimensions of a schedule, without messages.
    pub build: fn(&Schedule, usize) -> Vec<Op>,
    /// Published idle share of equal stages without transfers; `None` where no formula applies.
    pub bubble: fn(&Schedule, &StageCosts) -> Option<f64>,
    /// Published bound of the activations that a rank holds, in chunks of micro-batches.
    pub activations: fn(&Schedule, usize) -> usize,
}

const RANKS_MAX: usize = 4096;
/// Most passes of one kind in a schedule.
const PASSES_MAX: usize = 1 << 17;

impl Order {
    /// Every order there is.
    pub const ALL: &'static [Order] = &[
        naive::ORDER,
        gpipe::ORDER,
        one_forward_one_backward::ORDER,
        interleaved::ORDER,
        breadth_first::ORDER,
        zero_bubble_h1::ORDER,
        zero_bubble_v::ORDER,
    ];

    /// Returns the order called `name`.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the orders.
    pub fn find(name: &str) -> Result<&'static Self> {
        Self::ALL.iter().find(|order| order.name == name).ok_or_else(|| {
            let names = Self::ALL.iter().map(|order| order.name).collect::<Vec<_>>().join(", ");
            Error::invalid(format!("no pipeline schedule is called `{name}`: there are {names}"))
        })
    }

    /// Returns the number of chunks per rank if the user does not choose one.
    pub fn usual_chunks(&self) -> usize {
        2.min(*self.chunks.end())
    }

    /// Builds the schedule of `ranks` ranks that hold `chunks` chunks each, for a step of
    /// `micro_batches` micro-batches. The number of stages is `ranks * chunks`.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the rule that the numbers break.
    pub fn schedule(&self, ranks: usize, micro_batches: usize, chunks: usize) -> Result<Schedule> {
        self.schedule_parts(ranks, micro_batches, 1, chunks)
    }

    /// Builds the schedule of `ranks` ranks that hold `chunks` chunks each, for micro-batches of
    /// `micro_sequences` micro-sequences.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the rule that the numbers break.
    pub fn schedule_parts(
        &self,
        ranks: usize,
        micro_batches: usize,
        micro_sequences: usize,
        chunks: usize,
    ) -> Result<Schedule> {
        let micro_batches = micro_batches.saturating_mul(micro_sequences);
        self.check(ranks, micro_batches, micro_sequences, chunks)?;
        let placement = self.placement;
        let mut schedule =
            Schedule { ranks, micro_batches, micro_sequences, chunks, placement, rows: Vec::new() };
        let row = |rank| [(self.build)(&schedule, rank), vec![Op::Step]].concat();
        schedule.rows = (0..ranks).map(row).collect();
        messages::insert(&mut schedule);
        Ok(schedule)
    }

    fn check(&self, ranks: usize, micro_batches: usize, micro_sequences: usize, chunks: usize) -> Result<()> {
        let name = self.name;
        let refuse = |what: String| Err(Error::invalid(format!("pipeline schedule {name}: {what}")));
        let unit = if micro_sequences == 1 { "micro-batches" } else { "micro-sequences" };
        if ranks == 0 || micro_batches == 0 {
            return refuse(format!("{ranks} ranks and {micro_batches} {unit}: at least 1 of each"));
        }
        if ranks > RANKS_MAX {
            return refuse(format!("{ranks} ranks: there may be {RANKS_MAX}"));
        }
        let (least, most) = (*self.chunks.start(), *self.chunks.end());
        if !self.chunks.contains(&chunks) {
            let rule = match most {
                usize::MAX => format!("at least {least}"),
                _ => format!("exactly {least}"),
            };
            return refuse(format!("chunks = {chunks}: a rank holds {rule}"));
        }
        let passes = ranks.saturating_mul(micro_batches).saturating_mul(chunks);
        if passes > PASSES_MAX {
            let product = format!("{ranks} ranks * {micro_batches} {unit} * {chunks} chunks");
            return refuse(format!("{product}: there may be {PASSES_MAX} forward passes"));
        }
        let round = round_length(ranks, micro_sequences);
        if self.whole_rounds && !micro_batches.is_multiple_of(round) {
            return refuse(match micro_sequences {
                1 => format!("{micro_batches} micro-batches are no multiple of {ranks} ranks"),
                _ => format!(
                    "{micro_batches} micro-sequences are no multiple of {round}, the fewest whole micro-batches \
                     of at least one micro-sequence for each of {ranks} ranks"
                ),
            });
        }
        Ok(())
    }
}

/// Returns `warmup` forward passes, then one forward and one backward in turn, then the backward
/// passes that are left.
fn alternate(forwards: Vec<Op>, backwards: Vec<Op>, warmup: usize) -> Vec<Op> {
    let (mut forwards, mut backwards) = (forwards.into_iter(), backwards.into_iter());
    let mut row: Vec<Op> = forwards.by_ref().take(warmup).collect();
    for forward in forwards {
        row.push(forward);
        row.extend(backwards.next());
    }
    row.extend(backwards);
    row
}

/// Returns the number of micro-sequences that pass a chunk before the next chunk begins: at least
/// one per rank, so that none waits for the last rank. They are whole micro-batches, because the
/// last micro-sequence of each goes back first.
fn round_length(ranks: usize, micro_sequences: usize) -> usize {
    ranks.next_multiple_of(micro_sequences)
}

/// Returns the idle share (P−1)/(V·M+P−1) of pipelines whose ranks wait only at both ends.
fn fill_and_drain(schedule: &Schedule, _costs: &StageCosts) -> Option<f64> {
    let waits = (schedule.ranks - 1) as f64;
    Some(waits / ((schedule.chunks * schedule.micro_batches) as f64 + waits))
}

/// Returns the forward and the backward passes of chunk 0, in the order of micro-batches.
fn passes(schedule: &Schedule) -> (Vec<Op>, Vec<Op>) {
    let forward = |micro| Op::Forward { micro, chunk: 0 };
    let backward = |number| Op::Backward { micro: schedule.backward_micro(number), chunk: 0 };
    let numbers = 0..schedule.micro_batches;
    (numbers.clone().map(forward).collect(), numbers.map(backward).collect())
}
