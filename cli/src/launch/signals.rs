//! Signals that the launcher passes on to its ranks.

use super::Event;
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU,
};
use signal_hook::iterator::Signals;
use std::sync::mpsc::Sender;
use unisono_transports::sys::signals::without_ignored;

/// Turns signals into events, so that they do not end the launcher.
///
/// Signals that the launcher inherited as ignored stay ignored, by its ranks as well.
pub(super) fn forward(events: Sender<Event>) -> Result<(), String> {
    let failed = |error| format!("cannot watch for signals: {error}");
    let mut signals = Signals::new(without_ignored(&FORWARDED)).map_err(failed)?;
    let pass_on = move || {
        for number in signals.forever() {
            let Some(signal) = Signal::from_named_raw(number) else { continue };
            if events.send(Event::Signal(signal)).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(pass_on).map_err(failed)?;
    Ok(())
}

/// Returns true for signals after which the job has to end.
pub(super) fn ends_job(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::TERM | Signal::HUP)
}

/// Returns the name of a signal, for messages.
pub(super) fn name(signal: Signal) -> &'static str {
    signal_hook::low_level::signal_name(signal.as_raw()).unwrap_or("a signal")
}

/// Signals that would end or stop the launcher alone.
///
/// Apart from those of [`ends_job`], a rank decides what they mean. Schedulers announce the end of
/// a job by `SIGUSR1`, `SIGUSR2`, `SIGALRM` or `SIGXCPU`, and some programs print their state on
/// `SIGQUIT`.
const FORWARDED: [i32; 11] =
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, SIGIO, SIGTSTP, SIGCONT];
