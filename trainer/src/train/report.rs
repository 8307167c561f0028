//! Reports of a run: a progress line, a record per step, and a plot at the end.

mod metrics;
mod plot;
mod progress;
mod tensorboard;

pub use crate::train::report::metrics::StepRecord;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::train::report::metrics::fuzz;
pub(super) use crate::train::report::progress::print_line;
pub use crate::train::report::progress::validation_text;

use super::run::Run;
use super::step::StepStats;
use super::{pretrained, setup};
use crate::config::Config;
use crate::train::memory_report::MemoryReport;
use crate::train::report::metrics::MetricsWriter;
use crate::train::report::progress::ProgressLine;
use crate::train::report::tensorboard::EventWriter;
use std::path::Path;
use std::time::Duration;
use unisono_nn::device::Device;
use unisono_nn::error::Result;

/// Report of the reporting rank.
pub(super) struct Report {
    config: Config,
    line: ProgressLine,
    metrics: MetricsWriter,
    events: Option<EventWriter>,
    /// Floating-point operations of a step, and the peak per second of all ranks.
    flops: (f64, f64),
    /// Tokens per step.
    tokens: f64,
    /// Moving average of the time of a step.
    seconds_per_step: Option<f64>,
}

impl Report {
    /// Creates the report of a run whose ranks reach `peak` floating-point operations per second
    /// together.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub(super) fn new(run: &Run, peak: f64) -> Result<Self> {
        let config = run.config.clone();
        let samples = config.data.global_batch as f64;
        let flops = samples * run.flops_per_sample;
        let tokens = samples * config.model.context as f64;
        config.unused_keys().iter().chain(&pretrained::notes(&config)).for_each(|line| print_line(line));
        run.device.iter().for_each(|device| print_line(&device_name(device, &config)));
        let line = ProgressLine::new(config.schedule.steps, run.train_step, config.log.every);
        let journal = MetricsWriter::open(Path::new(&config.log.file), run.train_step)?;
        let folder = Some(config.log.tensorboard.as_str()).filter(|folder| !folder.is_empty());
        let events =
            folder.map(|folder| EventWriter::create(Path::new(folder), run.train_step)).transpose()?;
        let flops = (flops, peak);
        Ok(Self { config, line, metrics: journal, events, flops, tokens, seconds_per_step: None })
    }

    /// Reports a step, and the validation loss if it was measured after the step.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub(super) fn step(
        &mut self,
        taken: &StepStats,
        ledger: &MemoryReport,
        validation: Option<f64>,
    ) -> Result<()> {
        let seconds = taken.time.as_secs_f64();
        let pace = self.seconds_per_step.map_or(seconds, |pace| pace + (seconds - pace) * EMA_WEIGHT);
        self.seconds_per_step = Some(pace);
        let record = StepRecord {
            step: taken.step,
            loss: taken.loss,
            losses: taken.added.losses.clone(),
            metrics: taken.added.metrics.clone(),
            expert_loads: taken.added.loads.clone(),
            validation,
            perplexity: validation.map(f64::exp),
            grad_norm: taken.grad_norm,
            lr: taken.lr,
            seconds,
            tokens_per_second: self.tokens / pace,
            mfu: self.flops.0 / pace / self.flops.1,
            exposed_seconds: taken.exposed.as_secs_f64(),
            tensor_parallel_seconds: taken.tensor_parallel_wait.as_secs_f64(),
            pipeline_seconds: taken.pipeline_wait.as_secs_f64(),
            memory: ledger.measured(),
            memory_predicted: ledger.formula(),
        };
        let left = self.config.schedule.steps.saturating_sub(taken.step) as f64 * pace;
        self.line.step(&record, Duration::from_secs_f64(left));
        self.events.as_mut().map_or(Ok(()), |events| events.write(&record))?;
        self.metrics.write(record)
    }

    /// Ends the progress line, and writes the plot if configured.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn finish(self) -> Result<()> {
        self.line.finish();
        let loads = self.metrics.records().last().map(|record| &record.expert_loads);
        loads.into_iter().flatten().for_each(|(path, loads)| print_line(&load_text(path, loads)));
        match self.config.log.plot.as_str() {
            "" => Ok(()),
            path => plot::draw(Path::new(path), self.metrics.records()),
        }
    }
}

/// Formats the loads of a block's experts, relative to equal loads.
fn load_text(path: &str, loads: &[f64]) -> String {
    let highest_load = loads.iter().copied().fold(0.0, f64::max);
    let idle = loads.iter().filter(|load| **load == 0.0).count();
    let shown: Vec<_> = loads.iter().take(MAX_SHOWN_EXPERTS).map(|load| format!("{load:.2}")).collect();
    let more = if loads.len() > MAX_SHOWN_EXPERTS { " ..." } else { "" };
    format!(
        "{path}: {} experts, most loaded {highest_load:.2} x mean, {idle} without tokens: {}{more}",
        loads.len(),
        shown.join(" ")
    )
}

/// Number of experts whose loads a line shows.
const MAX_SHOWN_EXPERTS: usize = 16;

/// Returns the name of the device, and the work that is done there.
fn device_name(device: &Device, config: &Config) -> String {
    let work = match setup::host_only_option(config) {
        Some(why) => format!("exchanging and stepping on the CPU, as {why}"),
        None => "exchanging and stepping there too".to_owned(),
    };
    format!("{}; {work}", device.describe())
}

/// Formats a number with a comma between groups of three digits.
pub(super) fn with_separators(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Weight of the last step in the moving average.
const EMA_WEIGHT: f64 = 0.1;
