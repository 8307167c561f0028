//! The ranks of a run: threads of this process, or processes that the environment names.

use crate::config::{Config, DeviceKind};
use crate::error::{Error, Result};
use crate::train::train_loop::{TrainResult, run_rank};
use std::thread;
use unisono::{Communicator, ReductionOrder};

/// Trains on `ranks` threads of this process.
///
/// # Errors
/// The first that any rank has; it ends all others.
pub fn train_on_threads(ranks: usize, config: &Config) -> Result<TrainResult> {
    check_thread_count(ranks)?;
    let worlds = Communicator::builder().config(&communicator_config(config)?).local(ranks)?;
    thread::scope(|scope| {
        let start = |world| scope.spawn(move || run_with_errors(world, config));
        let threads: Vec<_> = worlds.into_iter().map(start).collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panic_error())));
        let (done, failed): (Vec<_>, Vec<_>) = ends.partition(Result::is_ok);
        let telling = failed.into_iter().filter_map(Result::err).reduce(more_informative);
        let first = done.into_iter().filter_map(Result::ok).next();
        telling.map_or_else(|| Ok(first.expect("a rank that ended")), Err)
    })
}

/// Ranks that are threads of one process, at most.
const MAX_THREADS: usize = 1 << 10;

/// That so many ranks can be threads of this process: each has a channel to each other.
///
/// # Errors
/// [`Error::Illegal`] says how many can be.
pub(super) fn check_thread_count(ranks: usize) -> Result<()> {
    let what = || format!("{ranks} ranks of one process: there may be {MAX_THREADS}");
    if ranks <= MAX_THREADS { Ok(()) } else { Err(Error::invalid(what())) }
}

/// Trains as one of the processes that `RANK`, `WORLD_SIZE` and their kin describe; the outcome at rank 0.
///
/// # Errors
/// Of this rank, or what it heard from others.
pub fn train_from_env(config: &Config) -> Result<Option<TrainResult>> {
    let world = Communicator::builder().config(&communicator_config(config)?).from_env()?;
    let speaks = world.rank() == 0;
    run_with_errors(world, config).map(|outcome| speaks.then_some(outcome))
}

/// One rank; its error ends all others.
fn run_with_errors(world: Communicator, config: &Config) -> Result<TrainResult> {
    let end = run_rank(world.clone(), config);
    if let Err(error) = &end {
        world.abort(&format!("rank {}: {error}", world.rank()));
    }
    end
}

/// Sums in the order of ranks, so that all strategies and transports take the same steps to the last bit; and of the software device, whose
/// few blocks all groups of all ranks share, one channel each.
fn communicator_config(config: &Config) -> Result<unisono::Config> {
    let mut settings = unisono::Config::from_env()?.with_reduction_order(ReductionOrder::RankOrder);
    if config.device == DeviceKind::Software {
        settings.gpu.channels = 1;
    }
    Ok(settings)
}

/// Of two errors the one that says more: that others failed or were told to end says least.
fn more_informative(one: Error, other: Error) -> Error {
    let tells = |error: &Error| match error {
        Error::Collective(error) => u8::from(error.is_invalid_usage()),
        Error::Invalid(_) => 2,
        _ => 3,
    };
    if tells(&other) > tells(&one) { other } else { one }
}

fn panic_error() -> Error {
    Error::invalid("a rank panicked: a bug")
}
