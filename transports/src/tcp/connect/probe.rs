//! The liveness probe, which is a connection to the listener of a rank whose control connection was
//! reset.
//!
//! A kernel resets a connection in three cases. Its process was killed with unread bytes, its
//! process closed the connection with unread bytes, or nothing was acknowledged for too long. In
//! the last case, the rank is alive. The probe distinguishes these cases, because a process that
//! has ended does not listen, and its kernel refuses the connection within a round trip.

use crate::tcp::connect::dialer::{DialOutcome, Dialer, is_connection_refused};
use crate::tcp::connect::lazy_link::DialContext;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A probe of one listener, in steps that never wait.
pub(crate) struct LivenessProbe {
    dialer: Dialer,
    /// Time of the last call of [`LivenessProbe::advance`].
    last_polled: Instant,
}

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Nobody listens at the address: the rank ended, or has left for good.
    Dead,
    /// The rank has proved that it belongs to this job and session.
    Alive,
    /// There was no answer in time, or the answer was not that of the rank.
    Unknown,
}

impl LivenessProbe {
    /// Creates a probe of the listener at `address`.
    pub(crate) fn new(address: SocketAddr, common: &DialContext) -> Self {
        Self {
            dialer: Dialer::for_probe(address, PROBE_TIMEOUT.min(common.timeout)),
            last_polled: Instant::now(),
        }
    }

    /// Continues as far as possible without waiting, and returns the result when there is one.
    pub(crate) fn advance(&mut self, common: &DialContext) -> Option<Liveness> {
        let unwatched = std::mem::replace(&mut self.last_polled, Instant::now()).elapsed();
        if unwatched > POLL_GAP_MAX {
            self.dialer.extend_deadline(unwatched);
        }
        match self.dialer.advance(common) {
            Ok(DialOutcome::Pending) => None,
            Ok(DialOutcome::Connected(_) | DialOutcome::Rejected) => Some(Liveness::Alive),
            Err(error) if is_connection_refused(&error) => Some(Liveness::Dead),
            Err(error) => {
                tracing::debug!(%error, "a liveness probe has no result");
                Some(Liveness::Unknown)
            }
        }
    }
}

impl std::fmt::Debug for LivenessProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LivenessProbe(..)")
    }
}

/// Time to wait for an answer. A kernel repeats a lost connection request after one second, which
/// must count as an attempt.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest pause between calls that counts as waiting. The answer may arrive during a longer pause,
/// so the deadline is extended after it.
const POLL_GAP_MAX: Duration = Duration::from_millis(50);
