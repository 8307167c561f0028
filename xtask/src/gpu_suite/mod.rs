//! The GPU suite: tests, experiments and benchmarks in one command, on a machine where nothing is
//! built and from which three files come back.
//!
//! `cargo xtask gpu-suite pack` writes `target/gpu-suite`. Copy that folder to the same place of a
//! checkout on the GPU machine and run `target/gpu-suite/xtask gpu-suite run OUT` there.

pub(crate) mod cells;
mod compare;
pub(crate) mod cpu_peers;
mod cpu_steps;
mod environment;
mod fatbin;
mod gate;
pub(crate) mod machine;
pub(crate) mod nccl;
pub(crate) mod pack;
#[cfg(test)]
mod planted;
mod predictions;
mod report;
mod rows;
mod runner;
mod skips;
mod stages;
mod steps;
pub(crate) mod tests;

use crate::{Result, cargo};
use environment::Environment;
use gate::Gate;
use rows::{Rows, row};
use runner::{Next, Outcome};
use serde_json::json;
use stages::Stage;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use steps::Step;

/// Facts that the steps of stages depend on.
struct Setting {
    /// The checkout.
    root: PathBuf,
    /// The packed executables.
    folder: PathBuf,
    /// Small sizes, on the emulator.
    rehearsal: bool,
    /// The machine has a GPU that this run is about.
    gpu: bool,
    gate: Gate,
}

/// Outcome of a stage.
#[derive(Debug, Default)]
struct StageResult {
    name: &'static str,
    question: &'static str,
    outcome: String,
    seconds: f64,
    /// Its time box.
    limit: f64,
    /// Commands that failed or were killed.
    failed_steps: Vec<String>,
}

fn folder() -> PathBuf {
    cargo::root().join("target/gpu-suite")
}

/// Runs the stages for a GPU or for the processors, in at most so many minutes.
pub(crate) fn run(out: &Path, minutes: f64, on_cpu: bool) -> Result {
    pack::decompress(&folder())?;
    let work = Work::new()?;
    let environment = Environment::new(&work.0, None);
    let (title, stages) =
        if on_cpu { ("unisono on processors", stages::CPU) } else { ("unisono on a GPU", stages::GPU) };
    let setting = Setting::new(false, !on_cpu);
    let suite = Suite::new(title, out, environment, setting, Duration::from_secs_f64(minutes * 60.0))?;
    let complaints = suite.run(stages)?;
    println!("{}", complaints.join("\n"));
    Ok(())
}

/// Runs all stages on the emulator under another name, in at most so many minutes. Fails if a test
/// fails, a stage has no rows, or a cell has no prediction.
pub(crate) fn rehearse(out: &Path, minutes: f64) -> Result {
    pack::decompress(&folder())?;
    let work = Work::new()?;
    let experiments = cargo::output(Command::new(folder().join("experiments")).arg("--emulator"))?;
    let environment = Environment::new(&work.0, Some(Path::new(experiments.trim())));
    let setting = Setting::new(true, true);
    let limit = Duration::from_secs_f64(minutes * 60.0);
    let suite = Suite::new("A rehearsal on the emulator", out, environment, setting, limit)?;
    let stages: Vec<&Stage> = stages::GPU.iter().chain(stages::CPU.iter().skip(1)).collect();
    match suite.run(stages)? {
        complaints if complaints.is_empty() => Ok(()),
        complaints => Err(format!("the rehearsal has failed:\n{}", complaints.join("\n"))),
    }
}

impl Setting {
    fn new(rehearsal: bool, gpu: bool) -> Self {
        Self { root: cargo::root(), folder: folder(), rehearsal, gpu, gate: Gate::default() }
    }
}

/// A temporary folder, removed when it is dropped.
struct Work(PathBuf);

impl Work {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("unisono-gpu-suite-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A run, and its three files.
struct Suite {
    title: &'static str,
    out: PathBuf,
    rows: Rows,
    log: File,
    environment: Environment,
    setting: Setting,
    begun: Instant,
    limit: Duration,
    results: Vec<StageResult>,
}

impl Suite {
    fn new(
        title: &'static str,
        out: &Path,
        environment: Environment,
        setting: Setting,
        limit: Duration,
    ) -> Result<Self> {
        std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
        let rows = Rows::create(&out.join("results.jsonl"))?;
        let log = File::create(out.join("log.txt")).map_err(|error| format!("log.txt: {error}"))?;
        let (begun, results) = (Instant::now(), Vec::new());
        Ok(Self { title, out: out.to_owned(), rows, log, environment, setting, begun, limit, results })
    }

    /// Runs the stages, and returns what a rehearsal must not have.
    fn run<'a>(mut self, stages: impl IntoIterator<Item = &'a Stage>) -> Result<Vec<String>> {
        let stages: Vec<&Stage> = stages.into_iter().collect();
        for (index, stage) in stages.iter().enumerate() {
            // Time that earlier stages have left is divided among the later ones.
            let share = |stage: &Stage| self.setting.either(stage.seconds, stage.rehearsed) as f64;
            let shares: f64 = stages[index..].iter().map(|stage| share(stage)).sum();
            let left = self.limit.saturating_sub(self.begun.elapsed());
            let limit = left.mul_f64(share(stage) / shares.max(1.0));
            self.stage(stage, limit)?;
            let text = report::text_of(self.title, &self.results, &self.rows);
            std::fs::write(self.out.join("README.md"), text)
                .map_err(|error| format!("README.md: {error}"))?;
        }
        Ok(report::complaints(&self.results, &self.rows))
    }

    fn stage(&mut self, stage: &Stage, limit: Duration) -> Result {
        let begun = Instant::now();
        let Stage { name, question, .. } = *stage;
        let mut failed_steps = Vec::new();
        let (mut outcome, mut count) = ("done".to_owned(), 0);
        if stage.needs_overlap && self.setting.gpu && self.setting.gate.nothing_overlaps() {
            outcome = "left out: no two grids run at once".to_owned();
            self.add(stage, json!({"skipped": name, "why": outcome}))?;
        } else {
            for step in (stage.steps)(&self.setting) {
                let left = limit.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    outcome = format!("out of time after {count} commands; then: {}", stage.fallback);
                    break;
                }
                count += 1;
                let ended = self.step(stage, &step, left, limit.as_secs_f64() / stage.seconds as f64)?;
                if ended != Outcome::Done {
                    failed_steps.push(format!("`{}`: {ended}", step.line()));
                }
            }
            if !failed_steps.is_empty() && outcome == "done" {
                outcome = format!("{} of {count} commands failed", failed_steps.len());
            }
        }
        if stage.is_gate {
            self.setting.gate = Gate::of(self.rows.of(name));
        }
        let (seconds, limit) = (begun.elapsed().as_secs_f64(), limit.as_secs_f64());
        println!("{name}: {outcome}, {seconds:.1} of {limit:.0} s");
        self.add(stage, json!({"outcome_of_stage": outcome, "seconds": rows::round(seconds)}))?;
        self.results.push(StageResult { name, question, outcome, seconds, limit, failed_steps });
        Ok(())
    }

    /// Runs a command; its longest time scales as its stage does, but is never below a start.
    fn step(&mut self, stage: &Stage, step: &Step, left: Duration, scale: f64) -> Result<Outcome> {
        let limit = Duration::from_secs_f64(step.seconds as f64 * scale.max(1.0));
        let mut command = Command::new(&step.program);
        command.args(&step.arguments).current_dir(&self.setting.root);
        command.envs(self.environment.variables.iter().cloned()).envs(step.variables.iter().cloned());
        let line = step.line();
        self.log(stage.name, &format!("$ {line}\n"))?;
        let Self { rows, log, begun, .. } = self;
        let ended = runner::run(&mut command, limit.min(left), |line| {
            match rows::parse(line) {
                Some(mut row) => {
                    row.extend(step.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
                    rows.add(stage.name, begun.elapsed().as_secs_f64(), row)?;
                }
                None => write_log(log, stage.name, line)?,
            }
            Ok(Next::Continue)
        })?;
        if ended != Outcome::Done {
            self.log(stage.name, &format!("{line}: {ended}\n"))?;
        }
        Ok(ended)
    }

    fn add(&mut self, stage: &Stage, object: serde_json::Value) -> Result {
        self.rows.add(stage.name, self.begun.elapsed().as_secs_f64(), row(object))
    }

    fn log(&mut self, stage: &str, line: &str) -> Result {
        write_log(&mut self.log, stage, line)
    }
}

fn write_log(log: &mut File, stage: &str, line: &str) -> Result {
    let end = if line.ends_with('\n') { "" } else { "\n" };
    write!(log, "[{stage}] {line}{end}").map_err(|error| format!("log.txt: {error}"))
}
