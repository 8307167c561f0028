//! Starts the ranks of a run: threads of this process, or processes described by the environment.

use crate::config::{Config, DeviceKind};
use crate::train::train_loop::{TrainResult, run_rank};
use crate::train::{DryRun, Interrupt};
use std::thread;
use unisono::{Communicator, ReductionOrder};
use unisono_nn::error::{Error, Result};

/// Trains on `ranks` threads of this process.
///
/// # Errors
/// Returns the first error of any rank. It ends all ranks.
pub fn train_on_threads(ranks: usize, config: &Config) -> Result<TrainResult> {
    train_on_threads_until(ranks, config, &Interrupt::default())
}

/// Trains on `ranks` threads of this process, to the end or until `interrupt` is requested.
/// Settings that do not fit together are refused before anything is sent.
///
/// # Errors
/// Returns the first error of any rank. It ends all ranks.
pub fn train_on_threads_until(ranks: usize, config: &Config, interrupt: &Interrupt) -> Result<TrainResult> {
    check_thread_count(ranks)?;
    DryRun::new(config, ranks)?;
    let worlds = local_worlds(ranks, config)?;
    thread::scope(|scope| {
        let start = |world| scope.spawn(move || run_with_errors(world, config, interrupt));
        let threads: Vec<_> = worlds.into_iter().map(start).collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panic_error())));
        // All ranks are awaited before one error is returned, because the error of the rank that
        // failed first says more than those of the ranks that it aborted.
        let (done, failed): (Vec<_>, Vec<_>) = ends.partition(Result::is_ok);
        let telling = failed.into_iter().filter_map(Result::err).reduce(more_informative);
        let first = done.into_iter().filter_map(Result::ok).next();
        telling.map_or_else(|| Ok(first.expect("a rank that ended")), Err)
    })
}

/// Creates the communicators of ranks that are threads of this process.
pub(crate) fn local_worlds(ranks: usize, config: &Config) -> Result<Vec<Communicator>> {
    check_thread_count(ranks)?;
    Ok(Communicator::builder().config(&communicator_config(config)?).local(ranks)?)
}

/// Maximum number of ranks that are threads of one process.
const MAX_THREADS: usize = 1 << 10;

/// Checks the number of ranks in one process. Each rank has a channel to each other rank.
///
/// # Errors
/// [`Error::Invalid`] with the maximum.
pub(super) fn check_thread_count(ranks: usize) -> Result<()> {
    let what = || format!("{ranks} ranks of one process: there may be {MAX_THREADS}");
    if ranks <= MAX_THREADS { Ok(()) } else { Err(Error::invalid(what())) }
}

/// Trains as the rank described by `RANK`, `WORLD_SIZE` and related variables, to the end or until
/// any rank has `interrupt` requested. Returns the result, and true on the reporting rank.
///
/// # Errors
/// Returns the error of this rank, or the error received from another rank.
pub fn train_from_env(config: &Config, interrupt: &Interrupt) -> Result<(TrainResult, bool)> {
    // The value is used later. It is checked here, before ranks meet, because the others would wait
    // for a rank that fails after that.
    unisono_nn::device::local_rank(|name| std::env::var(name).ok())?;
    let world =
        Communicator::builder().config(&communicator_config(config)?).from_env().map_err(start_error)?;
    DryRun::new(config, world.size())?;
    let speaks = world.rank() == 0;
    run_with_errors(world, config, interrupt).map(|outcome| (outcome, speaks))
}

/// Runs one rank. An error of it ends all others.
fn run_with_errors(world: Communicator, config: &Config, interrupt: &Interrupt) -> Result<TrainResult> {
    let end = run_rank(world.clone(), config, interrupt);
    if let Err(error) = &end {
        // Other ranks would wait for this one until their timeout.
        world.abort(&format!("rank {}: {error}", world.rank()));
    }
    end
}

/// Returns an error of the start without advice for programs, if the environment is at fault.
fn start_error(error: unisono::Error) -> Error {
    match error.is_invalid_usage() {
        true => Error::invalid(error.kind().to_string()),
        false => error.into(),
    }
}

/// Returns the communicator settings. Sums are in rank order, so that all strategies and transports
/// are bitwise equal. On the software GPU, each group uses one channel, because all groups of all
/// ranks share its few blocks.
fn communicator_config(config: &Config) -> Result<unisono::Config> {
    let mut settings = unisono::Config::from_env()?.with_reduction_order(ReductionOrder::RankOrder);
    if config.device == DeviceKind::Software {
        settings.gpu.channels = 1;
    }
    Ok(settings)
}

/// Returns the more informative of two errors. An error caused by another rank's failure is the
/// less informative one.
fn more_informative(first: Error, second: Error) -> Error {
    let tells = |error: &Error| match error {
        Error::Collective(error) => u8::from(error.is_invalid_usage()),
        Error::Invalid(_) => 2,
        _ => 3,
    };
    if tells(&second) > tells(&first) { second } else { first }
}

fn panic_error() -> Error {
    Error::invalid("a rank panicked: a bug")
}
