//! Measures a GPU by experiments: resident blocks, flag latency by each way to poll and to publish,
//! bandwidth of copies and reductions, launch cost, and memory shared between processes.
//!
//! Prints tables, and writes all figures as JSON to a file.
//!
//! gpu [--device cuda|software] [--quick] [--json FILE] [EXPERIMENT...]

mod copies;
mod handover;
mod launches;
mod residents;
mod sharing;
mod table;

use std::process::ExitCode;
use table::Table;
use unisono_cuda::device::{Gpu, GpuError};

/// Result of an experiment.
type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Something to find out.
struct Experiment {
    name: &'static str,
    run: fn(&Bench) -> BenchResult<Table>,
}

const EXPERIMENTS: [Experiment; 6] = [
    Experiment { name: "residents", run: residents::run },
    Experiment { name: "handover", run: handover::run },
    Experiment { name: "copies", run: copies::copies },
    Experiment { name: "reductions", run: copies::reductions },
    Experiment { name: "launches", run: launches::run },
    Experiment { name: "sharing", run: sharing::run },
];

/// Settings of the experiments.
struct Bench {
    gpu: Gpu,
    quick: bool,
}

/// Options of the command line.
#[derive(Default)]
struct Options {
    software: bool,
    quick: bool,
    json: Option<String>,
    experiments: Vec<String>,
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
            "--json" => wishes.json = Some(value()?),
            "--quick" => wishes.quick = true,
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

fn run(wishes: &Options) -> Result<(), String> {
    if wishes.software {
        unisono_cuda::emulator::install().map_err(|error| error.to_string())?;
    }
    let gpu = match Gpu::open(0) {
        // Without a GPU, there is nothing to measure.
        Err(error @ GpuError::NoDriver { .. }) if wishes.json.is_none() => {
            println!("nothing measured: {error}");
            return Ok(());
        }
        gpu => gpu.map_err(|error| error.to_string())?,
    };
    let mut tables = Vec::new();
    let bench = Bench { gpu, quick: wishes.quick };
    println!("{}", bench.title().map_err(|error| error.to_string())?);
    for experiment in &EXPERIMENTS {
        if !wishes.experiments.is_empty() && !wishes.experiments.iter().any(|name| name == experiment.name) {
            continue;
        }
        let table = (experiment.run)(&bench).map_err(|error| format!("{}: {error}", experiment.name))?;
        println!("\n{table}");
        tables.push((experiment.name, table));
    }
    wishes.json.as_ref().map_or(Ok(()), |file| {
        let text = table::to_json(bench.gpu.name(), &tables);
        std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))
    })
}

impl Bench {
    fn title(&self) -> BenchResult<String> {
        let (major, minor) = self.gpu.capability()?;
        let (free, all) = self.gpu.memory()?;
        let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
        Ok(format!(
            "{:?}: compute capability {major}.{minor}, {} multiprocessors, {:.1} of {:.1} GiB free",
            self.gpu,
            self.gpu.multiprocessors()?,
            gib(free),
            gib(all)
        ))
    }

    /// The first where it shall be quick, or the device has no speed; else the second.
    fn sized<T>(&self, small: T, large: T) -> T {
        if self.quick || self.gpu.is_emulated() { small } else { large }
    }
}
