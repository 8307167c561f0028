//! Asking at the door of a rank whose connection was reset whether it is still there.
//!
//! A kernel resets a connection when its process is killed with bytes unread; when a process shuts it so; and, in answer to
//! whatever comes next, when the kernel itself had given it up, because nothing was acknowledged for too long. In the last
//! case the rank lives. Its door tells: a process that has ended listens nowhere, and its kernel says so within a round trip.

use super::Dialling;
use super::dial::{Dial, Dialled, is_refusal};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// One question at one door, asked in steps that never wait.
pub(crate) struct Knock {
    dial: Dial,
    /// When somebody last looked what had come of it.
    looked: Instant,
}

/// What a knock shows of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nobody listens at its address: it ended, or has left for good.
    Ended,
    /// It proved that it is of this job and this meeting.
    Lives,
    /// Neither, in time: there was no answer, or not its own.
    Unknown,
}

impl Knock {
    /// At the door at `address`.
    pub(crate) fn at(address: SocketAddr, common: &Dialling) -> Self {
        Self { dial: Dial::knocking(address, KNOCK_TIME.min(common.patience)), looked: Instant::now() }
    }

    /// Goes on as far as possible; what has come of it, once something has.
    pub(crate) fn advance(&mut self, common: &Dialling) -> Option<Fate> {
        let unwatched = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        if unwatched > LOOK_TIME {
            self.dial.forgive(unwatched);
        }
        match self.dial.advance(common) {
            Ok(Dialled::NotYet) => None,
            Ok(Dialled::Connected(_) | Dialled::Busy) => Some(Fate::Lives),
            Err(error) if is_refusal(&error) => Some(Fate::Ended),
            Err(error) => {
                tracing::debug!(%error, "nothing shows whether a rank lives");
                Some(Fate::Unknown)
            }
        }
    }
}

impl std::fmt::Debug for Knock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Knock")
    }
}

/// For how long an answer is waited for: the second attempt of a kernel to connect, after a second, is one of its own.
const KNOCK_TIME: Duration = Duration::from_secs(2);
/// Whoever looks less often does other things in between, and the answer may be here since.
const LOOK_TIME: Duration = Duration::from_millis(50);
