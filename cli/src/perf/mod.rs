//! `unisono perf` times and verifies a collective for several sizes.

mod args;
mod bench;
mod device;
mod json;
mod jsonl;
mod memory;
pub(crate) mod op_case;
pub(crate) mod pattern;
mod report;
mod roofline;
mod room;
mod table;
mod tcp_baseline;

pub(crate) use args::Arguments;

use crate::bind::Bind;
use crate::launch::{Hosts, Launch};
use crate::perf::op_case::OpCase;
use bench::{Bench, Row};
use device::Device;
use report::Report;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use unisono::bootstrap::RankInfo;
use unisono::schedule::{Algorithm, GroupSpec};
use unisono::{Communicator, Config, DType, F8E4M3, F8E5M2, bf16, f16};
use unisono_transports::text::printable;

/// Starts or joins the ranks that the arguments describe, and measures.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    arguments.check()?;
    let config = arguments.config()?;
    if let Some(threads) = arguments.threads {
        if arguments.device != Device::Cpu && std::env::var_os(HARDWARE_QUEUES.0).is_none() {
            return Err(restart_with_queues());
        }
        return in_threads(arguments, &config, threads);
    }
    let launched = RankInfo::is_in_env();
    if arguments.in_world || arguments.ranks.is_none() && launched {
        if arguments.memory {
            return memory::run(arguments, &config);
        }
        let comm = Communicator::builder().config(&config).from_env().map_err(|error| error.to_string())?;
        return measure(arguments, &comm);
    }
    in_processes(arguments)
}

/// Replaces this process by one in which each rank on a GPU has a hardware queue. The driver reads
/// their number from the environment that a program starts with. Returns the error if it fails.
fn restart_with_queues() -> String {
    let mut restarted = Command::new("/proc/self/exe");
    restarted.args(std::env::args_os().skip(1)).env(HARDWARE_QUEUES.0, HARDWARE_QUEUES.1);
    format!("cannot start the measurement again with {HARDWARE_QUEUES:?}: {}", restarted.exec())
}

/// Most hardware queues that a process can have.
const HARDWARE_QUEUES: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

fn in_threads(arguments: &Arguments, config: &Config, threads: usize) -> Result<u8, String> {
    let comms = Communicator::builder().config(config).local(threads).map_err(|error| error.to_string())?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || measure(arguments, &comm))).collect();
        let ended =
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".to_owned())));
        ended.collect::<Result<Vec<u8>, _>>().map(|codes| codes.into_iter().max().unwrap_or(0))
    })
}

/// Starts this command again for each rank.
fn in_processes(arguments: &Arguments) -> Result<u8, String> {
    let executable = [OsString::from("/proc/self/exe")].into_iter();
    let program =
        executable.chain(std::env::args_os().skip(1)).chain([OsString::from("--in-world")]).collect();
    let ranks = arguments.ranks.unwrap_or(2);
    Launch {
        hosts: Hosts::ONE,
        ranks,
        program,
        prefix: false,
        verbose: arguments.verbose,
        continue_on_failure: false,
        grace: GRACE,
        // The ranks bind themselves after the roofline, which is measured on all cores.
        bind: Bind::None,
    }
    .run()
}

/// Measures every requested type, operation, root and size on one rank.
fn measure(arguments: &Arguments, comm: &Communicator) -> Result<u8, String> {
    #[cfg(feature = "gpu")]
    if arguments.device != Device::Cpu {
        return device::measure(arguments, comm);
    }
    let roofline =
        if arguments.wants_roofline() { Some(crate::perf::roofline::measure(comm)?) } else { None };
    let mut report = Report::new(arguments, comm, roofline, None);
    report.head();
    // Bind after the roofline and the head, which use all cores.
    arguments.bind.unwrap_or_default().apply(comm).map_err(|error| error.to_string())?;
    let roots = arguments.roots(comm.size()).into_iter();
    let algorithms_of_root: HashMap<usize, Vec<Option<&'static str>>> =
        roots.map(|root| Ok((root, compared(arguments, comm, root)?))).collect::<Result<_, String>>()?;
    for (dtype, test, size) in arguments.cases(comm.size()) {
        for &algorithm in &algorithms_of_root[&test.root] {
            room::require_room(comm, test, dtype.size(), size)?;
            if let (Some(collective), Some(_)) = (test.kind.collective(), algorithm) {
                comm.set_algorithm(collective, algorithm).map_err(|error| error.to_string())?;
            }
            report.add(row(arguments, comm, dtype, test, size)?)?;
        }
    }
    report.finish()
}

/// Returns the algorithms that are compared at each size. A single `None` leaves the choice to the
/// settings.
fn compared(
    arguments: &Arguments,
    comm: &Communicator,
    root: usize,
) -> Result<Vec<Option<&'static str>>, String> {
    let Some(names) = &arguments.compare else { return Ok(vec![None]) };
    let Some(collective) = arguments.collective.collective() else {
        return Err(format!("{} has no algorithms to compare", arguments.collective.name()));
    };
    let spec = GroupSpec::new(comm.size()).with_root(root);
    let of_collective = Algorithm::all().into_iter().filter(|row| row.collective == collective);
    let runs = |row: &&'static Algorithm| {
        (row.supports)(&spec) && comm.set_algorithm(collective, Some(row.name)).is_ok()
    };
    let known: Vec<&'static str> = of_collective.filter(runs).map(|row| row.name).collect();
    // The last trial has left its algorithm set, and `None` gives the choice back to the settings.
    comm.set_algorithm(collective, None).map_err(|error| error.to_string())?;
    if *names == ["all"] {
        return Ok(known.into_iter().map(Some).collect());
    }
    let named = |name: &String| {
        let found = known.iter().copied().find(|known| known == name);
        found.map(Some).ok_or_else(|| {
            let (name, known) = (printable(name), known.join(", "));
            format!("{collective} has no algorithm `{name}` that runs on these ranks; it has {known}")
        })
    };
    names.iter().map(named).collect()
}

/// Time for ranks that have yet to notice the failure of another rank.
const GRACE: Duration = Duration::from_secs(2);

fn row(
    arguments: &Arguments,
    comm: &Communicator,
    dtype: DType,
    test: OpCase,
    size: usize,
) -> Result<Row, String> {
    match dtype {
        DType::I8 => Bench::<i8>::new(arguments, comm, test, size)?.run(),
        DType::U8 => Bench::<u8>::new(arguments, comm, test, size)?.run(),
        DType::I32 => Bench::<i32>::new(arguments, comm, test, size)?.run(),
        DType::U32 => Bench::<u32>::new(arguments, comm, test, size)?.run(),
        DType::I64 => Bench::<i64>::new(arguments, comm, test, size)?.run(),
        DType::U64 => Bench::<u64>::new(arguments, comm, test, size)?.run(),
        DType::F16 => Bench::<f16>::new(arguments, comm, test, size)?.run(),
        DType::BF16 => Bench::<bf16>::new(arguments, comm, test, size)?.run(),
        DType::F32 => Bench::<f32>::new(arguments, comm, test, size)?.run(),
        DType::F64 => Bench::<f64>::new(arguments, comm, test, size)?.run(),
        DType::F8E4M3 => Bench::<F8E4M3>::new(arguments, comm, test, size)?.run(),
        DType::F8E5M2 => Bench::<F8E5M2>::new(arguments, comm, test, size)?.run(),
        _ => unreachable!("the arguments name types that GPUs know"),
    }
}

/// Reads text as what the kernel says of memory.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_memory(text: &str) {
    let _ = (memory::bytes_of(text, "Rss:"), room::available_in(text));
}
