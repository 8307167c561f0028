//! The course of a run: what is done between its steps.

use crate::config::Config;
use crate::error::Result;
use crate::train::report::Report;
use crate::train::run::{Run, StepStats};
use crate::train::{MemoryReport, flops};
use std::path::Path;
use unisono::{Communicator, Sum};

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainResult {
    /// Steps taken in all.
    pub steps: u64,
    /// Steps and losses since this run began, or went on.
    pub losses: Vec<f64>,
    /// Loss on what was held back, if something was.
    pub validation: Option<f64>,
    /// A number for the weights.
    pub fingerprint: u64,
    /// What rank 0 kept in memory.
    pub memory: MemoryReport,
    /// What was written to the end of the prompt, if the model writes.
    pub sample: Option<String>,
}

/// Trains to the end, as one rank of `world`.
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

/// Whether it is time for what is done every so many steps.
fn is_due(every: u64, taken: &StepStats) -> bool {
    every > 0 && taken.step.is_multiple_of(every)
}

fn finish(mut run: Run, losses: Vec<f64>) -> Result<TrainResult> {
    let validation = run.validate()?;
    let (fingerprint, sample) = (run.fingerprint()?, run.config.sample.clone());
    let sample = if sample.tokens > 0 { run.generate(&sample.prompt)? } else { None };
    let ledger = run.ledger().clone();
    Ok(TrainResult { steps: run.steps_taken(), losses, validation, fingerprint, memory: ledger, sample })
}

impl Run {
    /// Floating-point operations in a second that all ranks can do when all are at it.
    fn peak_flops(&self) -> Result<f64> {
        self.world.barrier()?;
        let mut peak = [match &self.device {
            Some(device) => flops::peak_flops_on(device)?,
            None => flops::peak_flops(self.config.threads),
        }];
        self.world.all_reduce(&mut peak, Sum)?;
        Ok(peak[0])
    }

    /// Writes the trace, if there is to be one, and records no more.
    fn finish_trace(&mut self) -> Result<()> {
        if !self.config.log.trace.is_empty() {
            self.trace.write(Path::new(&self.config.log.trace), &self.world)?;
            self.trace.stop();
        }
        Ok(())
    }
}
