//! Test support: the conformance suite of transports, fuzz targets and their seeds, a peer that
//! breaks the protocol, guarded memory, kept warnings, nested cargo, the Shuttle façade and the
//! flag latency probe.

use std::time::Duration;

#[doc(hidden)]
pub mod conformance;
pub mod flag_latency;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod guarded;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod nested_cargo;
#[doc(hidden)]
pub mod raw_peer;
#[doc(hidden)]
pub mod seeds;
#[cfg(shuttle)]
#[doc(hidden)]
pub mod shuttle;
#[doc(hidden)]
pub mod warnings;

/// Longer than anything takes that ends at all, on the busiest machine. Tests assert events; this
/// limit only ends a test that hangs, or whose wait ended by [`NEVER`] and not by the event.
pub const HANG: Duration = Duration::from_secs(100);

/// Timeout of ranks in tests of waits that an event must end: far beyond [`HANG`].
pub const NEVER: Duration = Duration::from_secs(3600);

/// Sends a signal to this process, which takes effect before this returns.
///
/// # Panics
/// Panics if the system does not take it.
pub fn signal_self(signal: SelfSignal) {
    let signal = match signal {
        SelfSignal::Stop => libc::SIGSTOP,
        SelfSignal::Kill => libc::SIGKILL,
    };
    // SAFETY: neither signal runs code of this process. `raise` sends it to this thread, which
    // therefore stops before it returns; another thread would take it somewhat later.
    let sent = unsafe { libc::raise(signal) };
    assert_eq!(sent, 0, "a signal to its own process");
}

/// A signal that no program can handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfSignal {
    /// `SIGSTOP`, which stops all threads until `SIGCONT`.
    Stop,
    /// `SIGKILL`.
    Kill,
}

/// Returns true if this host has IPv6 addresses. Otherwise says that the part `what` of a test is
/// skipped; the test harness does not capture the line.
pub fn has_ipv6(what: &str) -> bool {
    use std::io::Write;
    let has = std::net::TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_ok();
    if !has {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what} over IPv6: this host has no ::1");
    }
    has
}
