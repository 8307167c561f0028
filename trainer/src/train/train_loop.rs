//! Training loop: the work between steps.

use crate::config::{Checkpoint, Config};
use crate::machine::{peak_flops, peak_flops_on};
use crate::train::checkpointing::saved_by;
use crate::train::report::Report;
use crate::train::run::Run;
use crate::train::shared_cores;
use crate::train::step::StepStats;
use crate::train::{Interrupt, MemoryReport};
use std::path::{Path, PathBuf};
use unisono::{Communicator, Sum};
use unisono_nn::error::{Error, Result};

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainResult {
    /// Total number of steps taken.
    pub steps: u64,
    /// Loss of each step since the run started or resumed.
    pub losses: Vec<f64>,
    /// Validation loss, if there is validation data.
    pub validation: Option<f64>,
    /// Hash of the weights.
    pub fingerprint: u64,
    /// Memory of rank 0.
    pub memory: MemoryReport,
    /// Prompt and generated text, if the model generates text.
    pub sample: Option<String>,
    /// Answer to a request that ended the run early; `None` at its end.
    pub interruption: Option<Interruption>,
}

/// End of a run before its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// Checkpoint of the last step taken; `None` if the configuration saves none.
    pub saved: Option<PathBuf>,
}

/// Trains as one rank of `world`, to the end or until any rank has `interrupt` requested.
pub(super) fn run_rank(world: Communicator, config: &Config, interrupt: &Interrupt) -> Result<TrainResult> {
    let mut run = Run::create(config, world, |header| header.print())?;
    run.interrupt = interrupt.clone();
    train(run, config)
}

/// Takes the remaining steps of a run with this configuration, and does what is due between them.
pub(super) fn train(mut run: Run, config: &Config) -> Result<TrainResult> {
    let peak = run.peak_flops()?;
    // The lock has a name, because it ends when it is dropped, and other runs must be kept out of
    // the folder until this one ends.
    let _lock = if run.is_root() { run.preflight()? } else { None };
    let mut report = run.is_root().then(|| Report::new(&run, peak)).transpose()?;
    let (mut losses, mut interruption, mut unreported) = (Vec::new(), None, Ok(()));
    let traced_to = config.schedule.steps.min(run.steps_taken() + config.log.trace_steps);
    while run.steps_taken() < config.schedule.steps && interruption.is_none() {
        let taken = run.step()?;
        losses.push(taken.loss);
        // Validation comes before the report, because the record of a step has its loss.
        let validation = if is_due(config.log.validate_every, &taken) { run.validate()? } else { None };
        let written = report.as_mut().map(|report| report.step(&taken, run.ledger(), validation));
        if let Some(Err(error)) = written {
            // The work of the run is not lost with its log: the next step is saved as the last.
            (report, unreported) = (None, Err(error));
            run.interrupt.request();
        }
        // Replicas are compared first: if they differ, the run ends before it saves them.
        if is_due(config.log.check_replicas_every, &taken) {
            run.check_replicas()?;
        }
        let saved = run.save_if_due(&taken)?;
        if taken.step == traced_to {
            run.finish_trace()?;
        }
        // A request during the last step changes nothing, because the run ends there anyway.
        if taken.interrupted && taken.step < config.schedule.steps {
            interruption = Some(Interruption { saved });
        }
    }
    let reported = unreported.and_then(|()| report.map_or(Ok(()), Report::finish));
    // The error of a report names the checkpoint of the last step, which must be complete by then.
    run.finish_save()?;
    let reported = reported.map_err(|error| with_saved(error, interruption.as_ref()));
    // Only rank 0 reports, so the other ranks would go on to collectives that rank 0 never joins.
    saved_by(&run.world, &run.groups).agree_on_result(reported, "reporting a step")?;
    finish(run, losses, interruption)
}

/// Reason why a request saves no checkpoint.
pub const NOTHING_SAVED: &str = "nothing is saved, because checkpoint.every = 0 and checkpoint.last = false";

/// Adds to an error that ended the run where its last step is saved.
fn with_saved(error: Error, interruption: Option<&Interruption>) -> Error {
    match (error, interruption) {
        (Error::File { path, what }, Some(Interruption { saved: Some(saved) })) => {
            let saved = saved.display();
            Error::file(
                path,
                format!("{what}; the run is saved in `{saved}`: checkpoint.resume=true goes on"),
            )
        }
        (error, _) => error,
    }
}

/// Returns true if an action that runs every `every` steps is due.
fn is_due(every: u64, taken: &StepStats) -> bool {
    every > 0 && taken.step.is_multiple_of(every)
}

/// Returns the result of a run. An interrupted run is not validated and generates no text.
fn finish(mut run: Run, losses: Vec<f64>, interruption: Option<Interruption>) -> Result<TrainResult> {
    if let Some(balance) = run.stage_balance()? {
        run.log(&balance);
    }
    let is_whole = interruption.is_none();
    let validation = if is_whole { run.validate()? } else { None };
    let fingerprint = run.fingerprint()?;
    let sample = if is_whole && run.config.sample.tokens > 0 { run.sample()? } else { None };
    let (steps, memory) = (run.steps_taken(), run.ledger().clone());
    Ok(TrainResult { steps, losses, validation, fingerprint, memory, sample, interruption })
}

impl Run {
    /// Returns the peak floating-point operations per second of all ranks together.
    fn peak_flops(&self) -> Result<f64> {
        // All ranks measure at the same time, because they share the machine in a step, too.
        self.world.barrier()?;
        // Ranks that share cores may each have measured a core of its own for a moment.
        let mut peak = [match &self.device {
            Some(device) => peak_flops_on(device)?,
            None => peak_flops(self.config.threads) * shared_cores::share(&self.world, self.config.threads)?,
        }];
        self.world.all_reduce(&mut peak, Sum)?;
        Ok(peak[0])
    }

    /// Saves a checkpoint after a step if one is due, and returns its folder. One is also due after
    /// the last step, and after an interrupted one or at a request, unless the configuration saves
    /// none.
    fn save_if_due(&mut self, taken: &StepStats) -> Result<Option<PathBuf>> {
        let Checkpoint { every, last, .. } = self.config.checkpoint;
        let is_last = last && taken.step == self.config.schedule.steps;
        let is_requested = taken.interrupted || taken.save_requested;
        let is_due = is_last || is_requested && (last || every > 0) || is_due(every, taken);
        let saved = is_due.then(|| self.save()).transpose()?;
        if taken.save_requested {
            self.log(&match &saved {
                Some(folder) => format!("step {}: saving `{}` as requested", taken.step, folder.display()),
                None => format!("step {}: {NOTHING_SAVED}", taken.step),
            });
        }
        Ok(saved)
    }

    /// Writes the trace if configured, and stops recording. A trace that cannot be written is
    /// reported, and does not end the run.
    fn finish_trace(&mut self) -> Result<()> {
        if self.config.log.trace.is_empty() {
            return Ok(());
        }
        let written = self.trace.write(Path::new(&self.config.log.trace), &self.world);
        // Recording also ends after an error, because the events of all later steps would fill
        // memory.
        self.trace.stop();
        match written {
            Err(error @ Error::File { .. }) => {
                self.log(&format!("log.trace is not written, and the run goes on: {error}"));
                Ok(())
            }
            other => other,
        }
    }
}
