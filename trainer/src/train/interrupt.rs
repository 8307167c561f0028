//! Requests to a run from outside, by a signal or by the program: to end early, or to save.

use super::report::print_line;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use unisono::bootstrap::RankInfo;
use unisono_nn::error::{Error, Result};
use unisono_transports::sys::signals::without_ignored;

/// Request to end a run after its current step, or to save a checkpoint then. Clones share it.
///
/// All ranks end, or save, after the same step if any rank has the request.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    end: AtomicBool,
    save: AtomicBool,
}

impl Interrupt {
    /// Returns a request to end that Ctrl-C (`SIGINT`) and `SIGTERM` make, and to save that
    /// `SIGUSR1` makes. A second signal that asks for the end ends the process at once. Signals
    /// that this process inherited as ignored stay ignored.
    ///
    /// # Errors
    /// Fails if signals cannot be watched.
    pub fn on_signals() -> Result<Self> {
        let failed = |error| Error::Unsupported(format!("signals cannot be watched: {error}"));
        let watched = without_ignored(&[SIGINT, SIGTERM, SIGUSR1]);
        let (interrupt, mut signals) = (Self::default(), Signals::new(watched).map_err(failed)?);
        let requests = interrupt.clone();
        let watch = move || {
            let mut first = None;
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => requests.on_save_signal(),
                    _ => requests.on_end_signal(signal, *first.get_or_insert_with(Instant::now)),
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
        Ok(interrupt)
    }

    /// Requests the end after the current step.
    pub fn request(&self) {
        // The flag orders no other memory: ranks exchange it with the loss of a step.
        self.0.end.store(true, Ordering::Relaxed);
    }

    /// Returns true once the end is requested.
    pub fn is_requested(&self) -> bool {
        self.0.end.load(Ordering::Relaxed)
    }

    /// Requests a checkpoint after the current step. The run then goes on.
    pub fn request_save(&self) {
        self.0.save.store(true, Ordering::Relaxed);
    }

    /// Returns true if a checkpoint is requested, once for each request.
    pub(super) fn take_save_request(&self) -> bool {
        // One operation reads and clears the flag, so that a signal between the two is not lost.
        self.0.save.swap(false, Ordering::Relaxed)
    }

    fn on_save_signal(&self) {
        self.request_save();
        print_on_root("SIGUSR1: saving a checkpoint after this step, and going on");
    }

    /// Handles a signal that asks for the end. `first` is the time of the first one.
    fn on_end_signal(&self, signal: i32, first: Instant) {
        let is_first = !self.is_requested();
        self.request();
        if is_first {
            print_on_root("ending after this step; once more ends at once, without a checkpoint");
        } else if !is_repeated_by_launcher(first) {
            std::process::exit(128 + signal);
        }
    }
}

/// Prints a line if this process has rank 0 of its launcher, or has no launcher.
fn print_on_root(line: &str) {
    if RankInfo::rank_in_env().is_none_or(|rank| rank == 0) {
        print_line(line);
    }
}

/// Returns true for a signal so soon after the first that it may be the same one: a terminal sends
/// Ctrl-C to all processes, and a launcher passes it on to its ranks.
fn is_repeated_by_launcher(first: Instant) -> bool {
    RankInfo::is_in_env() && first.elapsed() < Duration::from_secs(1)
}

/// Exit status of a run that a signal ended early, as of a program that `SIGINT` kills.
pub const INTERRUPTED: u8 = 130;
