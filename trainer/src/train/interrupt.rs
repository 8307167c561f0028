//! Requests to end a run early, by a signal or by the program.

use super::report::print_line;
use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Request to end a run after its current step. Clones share it.
///
/// All ranks end after the same step if any rank has the request.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Returns a request that Ctrl-C (`SIGINT`) and `SIGTERM` make. A second signal ends the
    /// process at once.
    ///
    /// # Errors
    /// Fails if signals cannot be watched.
    pub fn on_signals() -> Result<Self> {
        let failed = |error| Error::Unsupported(format!("signals cannot be watched: {error}"));
        let (interrupt, mut signals) = (Self::default(), Signals::new([SIGINT, SIGTERM]).map_err(failed)?);
        let own = interrupt.clone();
        let watch = move || {
            let mut first = None;
            for signal in signals.forever() {
                own.on_signal(signal, *first.get_or_insert_with(Instant::now));
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
        Ok(interrupt)
    }

    /// Requests the end after the current step.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true once the end is requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Handles a signal. `first` is the time of the first one.
    fn on_signal(&self, signal: i32, first: Instant) {
        let is_first = !self.is_requested();
        self.request();
        if is_first {
            let is_root = std::env::var_os("RANK").is_none_or(|rank| rank == "0");
            if is_root {
                print_line("ending after this step; once more ends at once, without a checkpoint");
            }
        } else if !is_repeated_by_launcher(first) {
            std::process::exit(128 + signal);
        }
    }
}

/// Returns true for a signal so soon after the first that it may be the same one: a terminal sends
/// Ctrl-C to all processes, and a launcher passes it on to its ranks.
fn is_repeated_by_launcher(first: Instant) -> bool {
    std::env::var_os("RANK").is_some() && first.elapsed() < Duration::from_secs(1)
}

/// Exit status of a run that a signal ended early, as of a program that `SIGINT` kills.
pub const INTERRUPTED: u8 = 130;
