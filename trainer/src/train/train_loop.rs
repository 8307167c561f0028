//! Training loop: the work between steps.

use crate::config::Config;
use crate::error::Result;
use crate::train::report::Report;
use crate::train::run::{Run, StepStats};
use crate::train::{MemoryReport, flops};
use std::path::Path;
use unisono::{Communicator, Sum};

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
    /// Generated text, if the model generates text.
    pub sample: Option<String>,
}

/// Trains to the end as one rank of `world`.
pub(super) fn run_rank(world: Communicator, config: &Config) -> Result<TrainResult> {
    let mut run = Run::new(config, world)?;
    let peak = run.peak_flops()?;
    if run.is_root() {
        run.preflight()?;
    }
    let mut report = run.is_root().then(|| Report::new(&run, peak)).transpose()?;
    let (mut losses, traced_to) =
        (Vec::new(), config.schedule.steps.min(run.steps_taken() + config.log.trace_steps));
    while run.steps_taken() < config.schedule.steps {
        let taken = run.step()?;
        losses.push(taken.loss);
        let validation = if is_due(config.log.validate_every, &taken) { run.validate()? } else { None };
        if let Some(report) = &mut report {
            report.step(&taken, run.ledger(), validation)?;
        }
        if is_due(config.log.check_replicas_every, &taken) {
            run.check_replicas()?;
        }
        let is_last = config.checkpoint.every > 0 && taken.step == config.schedule.steps;
        if is_last || is_due(config.checkpoint.every, &taken) {
            run.save()?;
        }
        if taken.step == traced_to {
            run.finish_trace()?;
        }
    }
    report.map_or(Ok(()), Report::finish)?;
    finish(run, losses)
}

/// Returns true if an action that runs every `every` steps is due.
fn is_due(every: u64, taken: &StepStats) -> bool {
    every > 0 && taken.step.is_multiple_of(every)
}

fn finish(mut run: Run, losses: Vec<f64>) -> Result<TrainResult> {
    if let Some(balance) = run.stage_balance()? {
        run.log(&balance);
    }
    let validation = run.validate()?;
    let (fingerprint, sample) = (run.fingerprint()?, run.config.sample.clone());
    let sample = if sample.tokens > 0 { run.generate(&sample.prompt)? } else { None };
    let ledger = run.ledger().clone();
    Ok(TrainResult { steps: run.steps_taken(), losses, validation, fingerprint, memory: ledger, sample })
}

impl Run {
    /// Returns the peak floating-point operations per second of all ranks together.
    fn peak_flops(&self) -> Result<f64> {
        self.world.barrier()?;
        let mut peak = [match &self.device {
            Some(device) => flops::peak_flops_on(device)?,
            None => flops::peak_flops(self.config.threads),
        }];
        self.world.all_reduce(&mut peak, Sum)?;
        Ok(peak[0])
    }

    /// Writes the trace if configured, and stops recording.
    fn finish_trace(&mut self) -> Result<()> {
        if !self.config.log.trace.is_empty() {
            self.trace.write(Path::new(&self.config.log.trace), &self.world)?;
            self.trace.stop();
        }
        Ok(())
    }
}
