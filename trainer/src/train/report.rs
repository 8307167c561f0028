//! What a run tells while it goes: a line on the terminal, a line of JSON for each step, a drawing at the end.

mod line;
mod plot;
mod record;

pub(super) use line::say;
pub use record::Record;

use super::ledger::Ledger;
use super::run::{Run, Taken};
use super::{advice, setup, work};
use crate::config::Config;
use crate::device::Device;
use crate::error::Result;
use line::Line;
use record::Journal;
use std::path::Path;
use std::time::Duration;

/// The report of the rank that speaks for all.
pub(super) struct Report {
    config: Config,
    line: Line,
    journal: Journal,
    /// Floating-point operations of a step, and what all ranks could do in a second.
    work: (f64, f64),
    /// Tokens of a step; samples, where there are no tokens.
    tokens: f64,
    /// Mean time of a step, of late.
    pace: Option<f64>,
}

impl Report {
    /// Of a run whose ranks could do `peak` floating-point operations in a second.
    ///
    /// # Errors
    /// Of files.
    pub(super) fn new(run: &Run, peak: f64) -> Result<Self> {
        let config = run.config.clone();
        let samples = config.data.global_batch as f64;
        let flops = samples * work::flops_per_sample(&config, &run.inventory);
        let tokens =
            if run.network.gpt().is_some() { samples * config.model.context as f64 } else { samples };
        advice::without_effect(&config).iter().for_each(|line| say(line));
        run.device.iter().for_each(|device| say(&computing(device, &config)));
        let line = Line::new(config.schedule.steps, run.step, config.log.every);
        let journal = Journal::open(Path::new(&config.log.file), run.step)?;
        Ok(Self { config, line, journal, work: (flops, peak), tokens, pace: None })
    }

    /// Tells of a step, and of the loss on what was held back if it was measured after it.
    ///
    /// # Errors
    /// Of files.
    pub(super) fn step(&mut self, taken: &Taken, ledger: &Ledger, validation: Option<f64>) -> Result<()> {
        let seconds = taken.time.as_secs_f64();
        let pace = self.pace.map_or(seconds, |pace| pace + (seconds - pace) * INERTIA);
        self.pace = Some(pace);
        let record = Record {
            step: taken.step,
            loss: taken.loss,
            validation,
            norm: taken.norm,
            rate: taken.rate,
            seconds,
            tokens_per_second: self.tokens / pace,
            utilisation: self.work.0 / pace / self.work.1,
            exposed: taken.exposed.as_secs_f64(),
            in_layers: taken.in_layers.as_secs_f64(),
            memory: ledger.measured(),
            memory_formula: ledger.formula(),
        };
        let left = self.config.schedule.steps.saturating_sub(taken.step) as f64 * pace;
        self.line.step(&record, Duration::from_secs_f64(left));
        self.journal.write(record)
    }

    /// Ends the line, and draws the run if it is to be drawn.
    ///
    /// # Errors
    /// Of the file.
    pub(super) fn finish(self) -> Result<()> {
        self.line.finish();
        match self.config.log.plot.as_str() {
            "" => Ok(()),
            path => plot::draw(Path::new(path), self.journal.records()),
        }
    }
}

/// What computes, and what else is done there.
fn computing(device: &Device, config: &Config) -> String {
    let rest = match setup::on_host(config) {
        Some(why) => format!("exchanging and stepping on the CPU, as {why}"),
        None => "exchanging and stepping there too".to_owned(),
    };
    format!("{}; {rest}", device.describe())
}

/// How much of the last step goes into the mean.
const INERTIA: f64 = 0.1;
