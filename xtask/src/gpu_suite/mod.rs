//! The GPU suite: tests, experiments and benchmarks in one command, on a machine where nothing is
//! built.
//!
//! `cargo xtask gpu-suite pack` writes `target/gpu-suite`. Copy that folder to the same place of a
//! checkout on the GPU machine and run `target/gpu-suite/xtask gpu-suite run OUT` there.

pub(crate) mod cpu_peers;
mod fatbin;
pub(crate) mod nccl;
pub(crate) mod pack;
mod report;

use crate::{Result, cargo};
use report::Report;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Device that the suite runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// A GPU.
    Cuda,
    /// The software device, with small sizes: a rehearsal.
    Software,
}

/// Test modules of the trainer that use a device.
const TRAINER_FILTERS: [&str; 3] = ["device::", "pending_collective::", "grad_reducer::"];
/// Tests of kernel launches, which compute-sanitizer checks.
const LAUNCH_FILTER: &str = "launches";

fn folder() -> PathBuf {
    cargo::root().join("target/gpu-suite")
}

/// Runs the suite and writes JSON files, logs and the summary README.md into `out`.
pub(crate) fn run(device: Device, out: &Path) -> Result {
    decompress()?;
    let mut report = Report::new(out)?;
    if device == Device::Cuda {
        report.chapter("The machine", "machine", &mut Command::new("nvidia-smi"))?;
    }
    tests(device, &mut report)?;
    experiments(device, &mut report)?;
    collectives(device, &mut report)?;
    match report.failures() {
        0 => Ok(()),
        failed => Err(format!("{failed} parts failed: see {}/README.md", out.display())),
    }
}

impl Device {
    fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Software => "software",
        }
    }
}

/// Returns a command of the suite with the environment that ranks on one GPU need.
fn program(device: Device, name: &str) -> Command {
    let mut command = Command::new(folder().join(name));
    prepare(device, &mut command);
    command
}

fn prepare(device: Device, command: &mut Command) {
    command
        // Ranks on one GPU wait for each other: their streams must not share a queue.
        .env("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        // Lazy loading waits for running kernels, which may wait for each other: load all at the
        // start.
        .env("CUDA_MODULE_LOADING", "EAGER");
    if device == Device::Cuda {
        command.env("UNISONO_TEST_GPU", "1");
    }
}

fn decompress() -> Result {
    let entries = std::fs::read_dir(folder())
        .map_err(|error| format!("{}: {error}; run `cargo xtask gpu-suite pack`", folder().display()))?;
    let packed = entries.flatten().map(|entry| entry.path());
    for file in packed.filter(|file| file.extension().is_some_and(|extension| extension == "gz")) {
        cargo::run(Command::new("gunzip").arg("--force").arg(file))?;
    }
    Ok(())
}

fn tests(device: Device, report: &mut Report) -> Result {
    let one_thread = "--test-threads=1";
    let title = "Tests: memory, streams, launches, graphs";
    report.chapter(title, "test-driver", program(device, "test-driver").arg(one_thread))?;
    let mut collectives = program(device, "test-collectives");
    report.chapter("Tests: collectives", "test-collectives", collectives.arg(one_thread))?;
    let mut trainer = program(device, "test-trainer");
    report.chapter("Tests: the trainer", "test-trainer", trainer.args(TRAINER_FILTERS).arg(one_thread))?;
    if device == Device::Software || !cargo::is_installed("compute-sanitizer") {
        return Ok(());
    }
    for tool in ["memcheck", "racecheck"] {
        let mut command = Command::new("compute-sanitizer");
        prepare(device, &mut command);
        command.args(["--tool", tool, "--error-exitcode", "9"]).arg(folder().join("test-driver"));
        report.chapter(
            &format!("compute-sanitizer, {tool}"),
            tool,
            command.args([LAUNCH_FILTER, one_thread]),
        )?;
    }
    Ok(())
}

fn experiments(device: Device, report: &mut Report) -> Result {
    let mut command = program(device, "experiments");
    command.args(["--device", device.name()]).args((device == Device::Software).then_some("--quick"));
    let json = report.file("experiments.json");
    report.chapter("Experiments", "experiments", command.arg("--json").arg(json))
}

fn collectives(device: Device, report: &mut Report) -> Result {
    let (largest, sizes): (_, &[&str]) = match device {
        Device::Cuda => ("256M", &["2", "4", "8"]),
        Device::Software => ("64K", &["2"]),
    };
    let perf = |name: &str, ranks: &str, largest: &str, json: PathBuf| {
        let mut command = program(device, "unisono");
        command.args(["perf", name, "--device", device.name(), "-t", ranks]);
        command.args(["-b", "8", "-e", largest, "-f", "4", "-J"]).arg(json);
        command
    };
    for ranks in sizes {
        for name in ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"] {
            let file = format!("{name}-{ranks}");
            let json = report.file(&format!("{file}.json"));
            let title = format!("{name}, {ranks} ranks");
            report.chapter(&title, &file, &mut perf(name, ranks, largest, json))?;
        }
        let file = format!("all_reduce-{ranks}-ll");
        let json = report.file(&format!("{file}.json"));
        let title = format!("all_reduce, {ranks} ranks, LL instead of LL128");
        let mut command = perf("all_reduce", ranks, "64K", json);
        report.chapter(&title, &file, command.env("UNISONO_GPU_LL128", "0"))?;
    }
    Ok(())
}
