//! Proves a schedule right by running it on expressions.
//!
//! Every rank's program runs, against bounded queues, on the names of the inputs instead of on
//! numbers. What a run shows holds for every run, whatever the timing, the data and its length:
//! each output is made of the right inputs, each exactly once; nothing is read before it is held;
//! nothing deadlocks; no two steps race for a block; equal outputs have equal bits; and the counts
//! are those that the algorithm states.

mod machine;
mod order;
mod play;
mod ports;
mod promise;
mod room;
mod step;
mod survey;
mod value;
mod violation;

pub use play::{Event, Player, Trace, Write};
pub use survey::{RowReport, cases, run_all, survey, table};
pub use violation::{At, Blocked, Fault, Need, Violation, Wrong};

use crate::schedule::{Algorithm, Program, Reach, Schedule, Spec, Step};
use machine::Machine;

/// How a schedule is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Messages that a link holds for each direction and lane, at most.
    pub fifo_slots: usize,
    /// Whether input and output share memory, where the collective has such a form.
    pub in_place: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { fifo_slots: 2, in_place: false }
    }
}

/// What a correct schedule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Rounds of the longest chain of messages and signals.
    pub steps: u64,
    /// Blocks moved between ranks.
    pub blocks: u64,
    /// Most scratch blocks of any rank.
    pub scratch: u64,
    /// The smallest number of messages that a link has to hold.
    pub fifo_slots_needed: usize,
    /// For a reduction, the order of summation of the first output block, as ranks: `((0+1)+(2+3))`.
    pub expression: Option<String>,
    /// A hash of the expressions in all outputs: equal if every bit is computed alike.
    pub order: u64,
}

/// Proves that `algorithm` does for `spec` what it promises, at the cost that it states.
///
/// # Errors
/// The first thing found wrong.
pub fn check(algorithm: &Algorithm, spec: &Spec, options: &Options) -> Result<Report, Violation> {
    if spec.ranks == 0 || !(algorithm.fits)(spec) {
        return Err(Violation::Unfit);
    }
    let schedule = algorithm.schedule(spec);
    if algorithm.reach == Reach::Messages && schedule.programs.iter().any(uses_window) {
        return Err(Violation::Malformed("signals or windows in an algorithm that does not ask for them"));
    }
    let report = check_schedule(&schedule, options)?;
    let stated = (algorithm.cost)(spec);
    let counts = [
        ("steps", stated.steps, report.steps),
        ("blocks", stated.blocks, report.blocks),
        ("scratch", stated.scratch, report.scratch),
    ];
    match counts.into_iter().find(|(_, stated, found)| stated != found) {
        Some((what, stated, found)) => Err(Violation::Count { what, stated, found }),
        None => Ok(report),
    }
}

/// Proves that `schedule` computes its collective.
///
/// # Errors
/// The first thing found wrong.
pub fn check_schedule(schedule: &Schedule, options: &Options) -> Result<Report, Violation> {
    is_well_formed(schedule)?;
    // More room never hurts and never changes a value, so the first run that ends is the proof.
    let mut outcome = Err(Violation::Malformed("no messages fit a link"));
    for slots in 1..=options.fifo_slots {
        outcome = run(schedule, options.in_place, slots);
        if !matches!(outcome, Err(Violation::Deadlock { .. })) {
            break;
        }
    }
    outcome
}

fn run(schedule: &Schedule, in_place: bool, slots: usize) -> Result<Report, Violation> {
    let mut machine = Machine::new(schedule, in_place, slots)?;
    machine.run()?;
    let outputs = machine.outputs()?;
    Ok(Report {
        steps: machine.rounds(),
        blocks: machine.blocks,
        scratch: schedule.programs.iter().map(|program| program.scratch as u64).max().unwrap_or(0),
        fifo_slots_needed: slots,
        expression: outputs.expression,
        order: outputs.order,
    })
}

fn is_well_formed(schedule: &Schedule) -> Result<(), Violation> {
    let spec = &schedule.spec;
    let wrong = match () {
        () if spec.ranks == 0 || schedule.programs.len() != spec.ranks => "not one program for each rank",
        () if spec.root >= spec.ranks => "the root is no rank",
        () if schedule.parts == 0 => "a share of no blocks",
        () => return Ok(()),
    };
    Err(Violation::Malformed(wrong))
}

fn uses_window(program: &Program) -> bool {
    let mut steps = program.strands.iter().flat_map(|strand| &strand.steps);
    program.window > 0 || steps.any(|step| matches!(step, Step::Signal | Step::Wait { .. }))
}

#[cfg(test)]
mod tests;
