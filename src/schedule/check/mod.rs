//! Proves that a schedule computes its collective. For this, the checker runs the schedule on
//! expressions.
//!
//! Every rank's program runs with bounded queues, on the names of the inputs instead of numbers.
//! The result holds for every run, with any timing, data and length:
//!
//! - Each output combines the right inputs, and contains each of them exactly once.
//! - No chunk is read before it is written.
//! - No step waits forever.
//! - No two steps race for a chunk.
//! - Equal outputs have equal bits.
//! - The costs are those that the algorithm states.

mod address_space;
mod executor;
mod expression;
mod fate;
mod port_clock;
mod postcondition;
mod replay;
mod step;
mod sweep;
mod vector_clock;
mod violation;

pub use crate::schedule::check::replay::{Event, Replayer, Trace, Write};
pub(crate) use crate::schedule::check::sweep::cases_of;
pub use crate::schedule::check::sweep::{AlgorithmReport, cases, run_all, sweep, sweep_all};
pub use violation::{Blocked, BlockedOn, InputFate, OutputError, StepError, StepLocation, Violation};

use crate::schedule::check::executor::Executor;
use crate::schedule::{Algorithm, GroupSpec, PeerAccess, Program, Schedule, Step};

/// The conditions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most messages that a link holds for each direction and lane.
    pub fifo_slots: usize,
    /// True to let input and output share memory. This has no effect on a collective that has no
    /// in-place form.
    pub in_place: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { fifo_slots: 2, in_place: false }
    }
}

/// The costs of a correct schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Rounds of the longest chain of messages and signals.
    pub steps: u64,
    /// Chunks moved between ranks.
    pub chunks: u64,
    /// The most scratch chunks of any rank.
    pub scratch_chunks: u64,
    /// The smallest number of messages that a link has to hold.
    pub min_fifo_slots: usize,
    /// For a reduction, the order in which the inputs of ranks are added in the first output chunk,
    /// as in `((0+1)+(2+3))`.
    pub expression: Option<String>,
    /// A hash of the expressions in all outputs. Equal hashes mean that every bit is computed in
    /// the same way.
    pub order_hash: u64,
}

/// Proves that `algorithm` computes its collective for `spec`. If the algorithm states costs,
/// proves them as well.
///
/// # Errors
/// The first violation found.
pub fn check(algorithm: &Algorithm, spec: &GroupSpec, options: &Options) -> Result<Report, Violation> {
    if spec.ranks == 0 || !(algorithm.supports)(spec) {
        return Err(Violation::UnsupportedGroup);
    }
    let report = check_schedule(&algorithm.schedule(spec), options)?;
    let Some(complexity) = algorithm.complexity else { return Ok(report) };
    let stated = complexity(spec);
    let counts = [
        ("steps", stated.steps, report.steps),
        ("chunks", stated.chunks, report.chunks),
        ("scratch", stated.scratch_chunks, report.scratch_chunks),
    ];
    match counts.into_iter().find(|(_, stated, found)| stated != found) {
        Some((what, stated, found)) => Err(Violation::Count { what, stated, found }),
        None => Ok(report),
    }
}

/// Proves that `schedule` computes its collective.
///
/// # Errors
/// The first violation found.
pub fn check_schedule(schedule: &Schedule, options: &Options) -> Result<Report, Violation> {
    check_well_formed(schedule)?;
    // Longer queues never cause a deadlock and never change a value. So the first run that ends is
    // the proof.
    let mut outcome = Err(Violation::Malformed("no messages fit a link"));
    for slots in 1..=options.fifo_slots {
        outcome = execute(schedule, options.in_place, slots);
        if !matches!(outcome, Err(Violation::Deadlock { .. })) {
            break;
        }
    }
    outcome
}

fn execute(schedule: &Schedule, in_place: bool, slots: usize) -> Result<Report, Violation> {
    let mut machine = Executor::new(schedule, in_place, slots)?;
    machine.run()?;
    let outputs =
        machine.check_outputs().map_err(|violation| fate::with_fate(schedule, in_place, slots, violation))?;
    Ok(Report {
        steps: machine.rounds(),
        chunks: machine.chunks_moved,
        scratch_chunks: schedule.programs.iter().map(|program| program.scratch as u64).max().unwrap_or(0),
        min_fifo_slots: slots,
        expression: outputs.expression,
        order_hash: outputs.order_hash,
    })
}

fn check_well_formed(schedule: &Schedule) -> Result<(), Violation> {
    let spec = &schedule.spec;
    let lane_programs: usize = schedule.programs.iter().map(|program| program.lane_programs.len()).sum();
    let wrong = match () {
        () if spec.ranks == 0 || schedule.programs.len() != spec.ranks => "not one program for each rank",
        () if spec.ranks > RANKS_MAX => "more than 4096 ranks",
        () if lane_programs > LANE_PROGRAMS_MAX => "more than 8192 lane programs",
        () if spec.root >= spec.ranks => "the root is no rank",
        () if schedule.chunks_per_share == 0 => "a share of no chunks",
        () if schedule.peer_access == PeerAccess::TwoSided && schedule.programs.iter().any(uses_window) => {
            "signals or windows in an algorithm that does not ask for them"
        }
        () => return Ok(()),
    };
    Err(Violation::Malformed(wrong))
}

/// Largest number of ranks, and of lane programs, in a schedule. The limit is needed because the
/// checker keeps tables of their pairs.
const RANKS_MAX: usize = 4096;
const LANE_PROGRAMS_MAX: usize = 8192;

fn uses_window(program: &Program) -> bool {
    let mut steps = program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
    program.window > 0 || steps.any(|step| matches!(step, Step::Signal | Step::Wait { .. }))
}

#[cfg(test)]
mod tests;
