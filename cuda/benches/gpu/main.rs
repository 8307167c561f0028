//! Measures a GPU by experiments: rules of the driver, resident blocks, flag latency by each way to
//! poll and to publish, and bandwidth of copies and reductions. Further ones measure the cost of
//! launches and events, and memory shared between processes.
//!
//! Prints a JSON object on a line of its own for each figure, as soon as it is known. An experiment
//! that fails is a row with its error, and the others follow.
//!
//! gpu [--device cuda|software] [--quick] [--launch plain] [--label WORD] [EXPERIMENT...]

mod copies;
mod events;
mod handover;
mod launches;
mod machine;
mod page_locked;
mod residents;
mod rows;
mod rules;
mod sharing;
mod start;

use rows::print;
use serde_json::json;
use std::process::ExitCode;
use unisono_cuda::device::{Gpu, GpuError, gpus};

/// Result of an experiment.
type BenchResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Something to find out.
struct Experiment {
    name: &'static str,
    run: Run,
}

/// An experiment prints its rows.
enum Run {
    /// On a GPU that is opened before.
    Opened(fn(&Bench) -> BenchResult),
    /// It opens the GPU itself, or starts processes that do.
    Unopened(fn(&Options) -> BenchResult),
}

const EXPERIMENTS: [Experiment; 12] = [
    Experiment { name: "machine", run: Run::Unopened(machine::run) },
    Experiment { name: "start", run: Run::Unopened(start::run) },
    Experiment { name: "rules", run: Run::Unopened(rules::run) },
    Experiment { name: "rules-streams", run: Run::Unopened(rules::run_streams) },
    Experiment { name: "residents", run: Run::Opened(residents::run) },
    Experiment { name: "launches", run: Run::Opened(launches::run) },
    Experiment { name: "handover", run: Run::Opened(handover::run) },
    Experiment { name: "copies", run: Run::Opened(copies::copies) },
    Experiment { name: "reductions", run: Run::Opened(copies::reductions) },
    Experiment { name: "events", run: Run::Opened(events::run) },
    Experiment { name: "page-locked", run: Run::Opened(page_locked::run) },
    Experiment { name: "sharing", run: Run::Opened(sharing::run) },
];

/// Settings of the experiments.
struct Bench {
    gpu: Gpu,
    quick: bool,
    /// Launches are plain, because cooperative ones do not run at once.
    plain: bool,
}

/// Options of the command line.
#[derive(Clone, Default)]
struct Options {
    software: bool,
    quick: bool,
    plain: bool,
    label: String,
    experiments: Vec<String>,
    /// Rules to try in this process.
    rules: Vec<String>,
}

fn main() -> ExitCode {
    if let Some(handle) = sharing::handle_for_child() {
        return sharing::child(&handle);
    }
    match parse_options(std::env::args().skip(1)).and_then(|wishes| run(&wishes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse_options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut wishes = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--device" => wishes.software = device(&value()?)?,
            "--quick" => wishes.quick = true,
            "--launch" => wishes.plain = value()? == "plain",
            "--label" => wishes.label = value()?,
            "--rule" => wishes.rules.push(value()?),
            "--emulator" => {
                println!("{}", emulator_folder()?);
                std::process::exit(0);
            }
            // Added by cargo.
            "--bench" => {}
            name if EXPERIMENTS.iter().any(|experiment| experiment.name == name) => {
                wishes.experiments.push(argument);
            }
            other => return Err(format!("unknown: {other}")),
        }
    }
    Ok(wishes)
}

fn device(name: &str) -> Result<bool, String> {
    match name {
        "cuda" => Ok(false),
        "software" => Ok(true),
        other => Err(format!("no device {other}: cuda or software")),
    }
}

/// Returns a folder in which the loader finds the emulator as the driver.
fn emulator_folder() -> Result<String, String> {
    let folder = unisono_cuda::emulator::driver_folder().map_err(|error| error.to_string())?;
    Ok(folder.display().to_string())
}

impl Options {
    /// Makes the emulator the driver where that is asked for.
    fn prepare(&self) -> BenchResult {
        if self.software {
            unisono_cuda::emulator::install()?;
        }
        Ok(())
    }

    fn bench(&self) -> BenchResult<Bench> {
        Ok(Bench { gpu: Gpu::open(0)?, quick: self.quick, plain: self.plain })
    }

    fn wants(&self, experiment: &Experiment) -> bool {
        self.experiments.is_empty() || self.experiments.iter().any(|name| name == experiment.name)
    }
}

fn run(wishes: &Options) -> Result<(), String> {
    wishes.prepare().map_err(|error| error.to_string())?;
    if !wishes.rules.is_empty() {
        return rules::child(&wishes.rules).map_err(|error| error.to_string());
    }
    // Without a GPU, there is nothing to measure.
    if let (true, Err(error @ GpuError::NoDriver { .. })) = (wishes.experiments.is_empty(), gpus()) {
        println!("nothing measured: {error}");
        return Ok(());
    }
    let (mut bench, mut failed) = (None, Vec::new());
    for experiment in EXPERIMENTS.iter().filter(|experiment| wishes.wants(experiment)) {
        if let Err(error) = measure(wishes, experiment, &mut bench) {
            print(&json!({"experiment": experiment.name, "error": error.to_string()}));
            failed.push(experiment.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs an experiment, on a GPU that stays open for the next one.
fn measure(wishes: &Options, experiment: &Experiment, bench: &mut Option<Bench>) -> BenchResult {
    match experiment.run {
        Run::Unopened(run) => run(wishes),
        Run::Opened(run) => {
            let bench = match bench {
                Some(bench) => bench,
                None => bench.insert(wishes.bench()?),
            };
            run(bench)
        }
    }
}

impl Bench {
    /// The first where it shall be quick, or the device has no speed; else the second.
    fn sized<T>(&self, small: T, large: T) -> T {
        if self.quick || self.gpu.is_emulated() { small } else { large }
    }
}
