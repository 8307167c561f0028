//! Asking at the door of a rank whose connection was reset whether it is still there.
//!
//! A kernel resets a connection when its process is killed with bytes unread; when a process shuts it so; and, in answer to
//! whatever comes next, when the kernel itself had given it up, because nothing was acknowledged for too long. In the last
//! case the rank lives. Its door tells: a process that has ended listens nowhere, and its kernel says so within a round trip.

use crate::tcp::connect::dialer::{DialOutcome, Dialer, is_connection_refused};
use crate::tcp::connect::lazy_link::DialContext;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// One question at one door, asked in steps that never wait.
pub(crate) struct LivenessProbe {
    dialer: Dialer,
    /// When somebody last looked what had come of it.
    last_polled: Instant,
}

/// What a knock shows of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Nobody listens at its address: it ended, or has left for good.
    Dead,
    /// It proved that it is of this job and this meeting.
    Alive,
    /// Neither, in time: there was no answer, or not its own.
    Unknown,
}

impl LivenessProbe {
    /// At the door at `address`.
    pub(crate) fn new(address: SocketAddr, common: &DialContext) -> Self {
        Self {
            dialer: Dialer::for_probe(address, PROBE_TIMEOUT.min(common.timeout)),
            last_polled: Instant::now(),
        }
    }

    /// Goes on as far as possible; what has come of it, once something has.
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
                tracing::debug!(%error, "nothing shows whether a rank lives");
                Some(Liveness::Unknown)
            }
        }
    }
}

impl std::fmt::Debug for LivenessProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Knock")
    }
}

/// For how long an answer is waited for: the second attempt of a kernel to connect, after a second, is one of its own.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Whoever looks less often does other things in between, and the answer may be here since.
const POLL_GAP_MAX: Duration = Duration::from_millis(50);
