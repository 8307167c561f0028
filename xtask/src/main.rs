//! `cargo xtask`: the tasks of the repository that are more than one cargo command.

mod bench;
mod cargo;
mod filters;
mod fuzz;
mod gpu_suite;
mod kernels;
mod long_tests;
mod memcheck;
mod quick;
mod release;
mod sanitize;
mod shuttle;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Outcome of a task; the text says what failed and what to do.
type Result<T = ()> = std::result::Result<T, String>;

/// Runs a task of the repository.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the lanes of CI, or only the lanes named.
    Ci {
        /// Names of lanes; `.ci/run` lists them.
        lanes: Vec<String>,
    },
    /// Check what a change is most likely to break, in three minutes: format, style and layers,
    /// lints of the changed packages, unit tests of the core.
    Quick(quick::Arguments),
    /// Check that versions, dependencies and the changelog agree, and print the order in which the
    /// packages are published.
    Release(release::Arguments),
    /// Run a benchmark.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Fuzz the parsers of bytes from outside.
    Fuzz(fuzz::Arguments),
    /// Compile the GPU kernels, or check the committed ones.
    Kernels {
        /// Compare with the committed kernels instead of writing them.
        #[arg(long)]
        check: bool,
        /// Make the size of the compiled kernels their budget.
        #[arg(long, conflicts_with = "check")]
        budget: bool,
    },
    /// Run tests under ThreadSanitizer or AddressSanitizer.
    Sanitize(sanitize::Arguments),
    /// Run the shuttle models under many thread schedules, or replay one schedule.
    Shuttle(shuttle::Arguments),
    /// Run mixed collectives for a while and check that memory, threads and throughput stay flat.
    Soak {
        /// Duration in minutes.
        #[arg(default_value_t = 10)]
        minutes: u64,
    },
    /// Run the fault tests in their long forms, about forty minutes on two cores.
    Faults {
        /// Arguments of the test harness, for example part of a test name.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Run every collective between processes under valgrind's memcheck.
    Memcheck,
    /// Pack the GPU tests and benchmarks, or run them on a machine with a GPU.
    #[command(subcommand)]
    GpuSuite(GpuSuite),
}

#[derive(Subcommand)]
enum GpuSuite {
    /// Build tests and benchmarks into target/gpu-suite, at most 60 MiB with the tracked files.
    Pack {
        /// Neither strip nor compress: for a rehearsal on this machine.
        #[arg(long)]
        quick: bool,
    },
    /// Pack NCCL and its benchmark into a folder, which `pack` does for the suite.
    PackNccl {
        /// Folder for the packed files.
        folder: PathBuf,
    },
    /// Pack unisono and other libraries for a comparison on CPUs into a folder.
    PackCpu {
        /// Folder for the packed files.
        folder: PathBuf,
    },
    /// Run target/gpu-suite on the GPU; nothing is built.
    Run {
        /// Folder for results.jsonl, log.txt and the summary README.md.
        out: PathBuf,
        /// Time for all stages. [default: 7, or 4 with --cpu]
        #[arg(long)]
        minutes: Option<f64>,
        /// Run the stages about processors instead.
        #[arg(long)]
        cpu: bool,
    },
    /// Run target/gpu-suite on the emulator under another name, with small sizes.
    Rehearse {
        /// Folder for results.jsonl, log.txt and the summary README.md.
        out: PathBuf,
        /// Time for all stages.
        #[arg(long, default_value_t = 4.0)]
        minutes: f64,
    },
    /// Print the predictions of all cells, as benches/predictions-h100.tsv has them.
    Predictions,
    /// Print rows about the machine.
    #[command(hide = true)]
    Machine,
    /// Run tests, each with its own deadline, and print a row for each.
    #[command(hide = true)]
    Tests(gpu_suite::tests::Arguments),
}

impl GpuSuite {
    fn run(self) -> Result {
        match self {
            Self::Pack { quick } => gpu_suite::pack::pack(quick),
            Self::PackNccl { folder } => gpu_suite::nccl::pack(&folder),
            Self::PackCpu { folder } => gpu_suite::cpu_peers::pack(&folder),
            Self::Run { out, minutes, cpu } => {
                gpu_suite::run(&out, minutes.unwrap_or(if cpu { 4.0 } else { 7.0 }), cpu)
            }
            Self::Rehearse { out, minutes } => gpu_suite::rehearse(&out, minutes),
            Self::Predictions => {
                print!("{}", gpu_suite::cells::table());
                Ok(())
            }
            Self::Machine => gpu_suite::machine::run(),
            Self::Tests(arguments) => gpu_suite::tests::run(&arguments),
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result {
    match task {
        Task::Ci { lanes } => cargo::run(Command::new(cargo::root().join(".ci/run")).args(lanes)),
        Task::Quick(arguments) => quick::run(&arguments),
        Task::Release(arguments) => release::run(&arguments),
        Task::Bench(bench) => bench.run(),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Kernels { check, budget } => kernels::run(check, budget),
        Task::Sanitize(arguments) => sanitize::run(&arguments),
        Task::Shuttle(arguments) => shuttle::run(&arguments),
        Task::Soak { minutes } => long_tests::soak(minutes),
        Task::Faults { filter } => long_tests::faults(&filter),
        Task::Memcheck => memcheck::run(),
        Task::GpuSuite(task) => task.run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
