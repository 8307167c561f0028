//! The course of a run: what is done between its steps.

use super::report::Report;
use super::run::{Run, Taken};
use super::{Ledger, work};
use crate::config::Config;
use crate::error::Result;
use std::path::Path;
use unisono::{Communicator, Sum};

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Steps taken in all.
    pub steps: u64,
    /// Steps and losses since this run began, or went on.
    pub losses: Vec<f64>,
    /// Loss on what was held back, if something was.
    pub validation: Option<f64>,
    /// A number for the weights.
    pub fingerprint: u64,
    /// What rank 0 kept in memory.
    pub ledger: Ledger,
    /// What was written to the end of the prompt, if the model writes.
    pub sample: Option<String>,
}

/// Trains to the end, as one rank of `world`.
pub(super) fn follow(world: Communicator, config: &Config) -> Result<Outcome> {
    let mut run = Run::new(config, world)?;
    let peak = run.peak()?;
    if run.speaks() {
        run.check_start()?;
    }
    let mut report = run.speaks().then(|| Report::new(&run, peak)).transpose()?;
    let (mut losses, traced_to) =
        (Vec::new(), config.schedule.steps.min(run.steps() + config.log.trace_steps));
    while run.steps() < config.schedule.steps {
        let taken = run.step()?;
        losses.push(taken.loss);
        let validation = if is_due(config.log.validate_every, &taken) { run.validate()? } else { None };
        if let Some(report) = &mut report {
            report.step(&taken, run.ledger(), validation)?;
        }
        if is_due(config.log.compare_every, &taken) {
            run.compare()?;
        }
        let is_last = config.checkpoint.every > 0 && taken.step == config.schedule.steps;
        if is_last || is_due(config.checkpoint.every, &taken) {
            run.save()?;
        }
        if taken.step == traced_to {
            run.end_trace()?;
        }
    }
    report.map_or(Ok(()), Report::finish)?;
    conclude(run, losses)
}

/// Whether it is time for what is done every so many steps.
fn is_due(every: u64, taken: &Taken) -> bool {
    every > 0 && taken.step.is_multiple_of(every)
}

fn conclude(mut run: Run, losses: Vec<f64>) -> Result<Outcome> {
    let validation = run.validate()?;
    let (fingerprint, sample) = (run.fingerprint()?, run.config.sample.clone());
    let sample = if sample.tokens > 0 { run.write_on(&sample.prompt)? } else { None };
    let ledger = run.ledger().clone();
    Ok(Outcome { steps: run.steps(), losses, validation, fingerprint, ledger, sample })
}

impl Run {
    /// Floating-point operations in a second that all ranks can do when all are at it.
    fn peak(&self) -> Result<f64> {
        self.world.barrier()?;
        let mut peak = [match &self.device {
            Some(device) => work::peak_flops_on(device)?,
            None => work::peak_flops(self.config.threads),
        }];
        self.world.all_reduce(&mut peak, Sum)?;
        Ok(peak[0])
    }

    /// Writes the trace, if there is to be one, and records no more.
    fn end_trace(&mut self) -> Result<()> {
        if !self.config.log.trace.is_empty() {
            self.trace.write(Path::new(&self.config.log.trace), &self.world)?;
            self.trace.stop();
        }
        Ok(())
    }
}
