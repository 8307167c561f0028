//! The end of a communicator by errors and aborts, and the message to the peers that this rank
//! leaves.
//!
//! The first error poisons a communicator: every later call returns it. The error is sent to all
//! peers before anything is closed, so that they report the cause and not a lost connection.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
#[cfg(feature = "gpu")]
use crate::schedule::Rank;
use std::time::Duration;
use unisono_transports::sys::fork_guard;

impl Engine {
    /// Returns the error that ended this communicator, if one did.
    #[inline]
    pub(super) fn check_healthy(&mut self) -> Result<()> {
        if self.watchdog.is_abort_raised() || self.poisoned.is_some() {
            self.check_poisoned()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn check_poisoned(&mut self) -> Result<()> {
        if let Some(reason) = self.watchdog.abort_reason() {
            self.abort(&reason);
        }
        self.poisoned.clone().map_or(Ok(()), Err)
    }

    /// Tells all ranks that the program of this rank ended the communicator because of `reason`.
    pub(crate) fn abort(&mut self, reason: &str) {
        self.end(ErrorKind::abort_request(self.fabric.rank, reason));
    }

    /// Tells all ranks that this communicator is over, unless it is already.
    fn end(&mut self, kind: ErrorKind) {
        if self.poisoned.is_none() {
            self.poison(self.own_error(kind));
            self.dump_flight_record();
        }
    }

    /// Returns an error of this rank outside an operation.
    pub(super) fn own_error(&self, kind: ErrorKind) -> Error {
        Error::new(kind).with_rank(self.fabric.rank, &self.config.host, None)
    }

    /// Forwards an abort that was requested while no operation waited, so that the peers hear of
    /// it.
    #[inline]
    pub(crate) fn poll_abort(&mut self) {
        if self.watchdog.is_abort_raised() {
            // The error may be ignored here, because the next call returns it.
            let _ = self.check_poisoned();
        }
    }

    /// Replaces an error by its cause, adds this rank and the operation to it, and poisons the
    /// communicator.
    #[cold]
    pub(super) fn fail(&mut self, error: Error, op: Option<OpDesc>) -> Result<()> {
        let error = self.watchdog.root_cause(&mut *self.fabric.control, error);
        let error = self.name_earlier_mismatch(error);
        let error = error.with_rank(self.fabric.rank, &self.config.host, op);
        if let Some(trace) = &mut self.trace {
            trace.end(&self.recorder, Some(&error));
        }
        self.poison(error.clone());
        self.dump_flight_record();
        Err(error)
    }

    /// Makes every later call return `error`, sends it to the peers, and records it.
    pub(super) fn poison(&mut self, error: Error) {
        self.watchdog.broadcast_error(&mut *self.fabric.control, &error);
        self.watchdog.record_failure(&error);
        self.recorder.set_error(error.clone());
        self.messages.fail_all(&error);
        self.poisoned = Some(error);
    }

    /// Writes the flight record to the configured directory.
    ///
    /// It is written once for each failure, because later operations, on other communicators, are
    /// not part of its history.
    fn dump_flight_record(&self) {
        let Some(folder) = &self.config.flight_recorder_dir else { return };
        match self.recorder.snapshot(0).dump(folder) {
            Ok(file) => tracing::info!(file = %file.display(), "wrote the flight record"),
            Err(error) => crate::log::warn_user(&format!(
                "no flight record is written to {}: {error}",
                folder.display()
            )),
        }
    }

    /// Tells the peers that this rank waits in `op` of another communicator.
    pub(crate) fn announce_wait_elsewhere(&mut self, op: OpDesc) {
        if self.left {
            return;
        }
        self.watchdog.announce_wait_elsewhere(&mut *self.fabric.control, op);
        // An abort may have been raised while the engine was locked, when its caller could not tell
        // the peers.
        let _ = self.check_healthy();
    }
}

/// Access for GPU communicators, whose operations run outside the engine.
#[cfg(feature = "gpu")]
impl Engine {
    /// Reads all events of the peers while `op`, if any, runs outside the engine.
    pub(crate) fn poll_events(&mut self, op: Option<OpDesc>) -> Result<()> {
        self.check_healthy()?;
        let now = self.fabric.wait.now();
        self.watchdog.poll_events(&mut *self.fabric.control, now, op).or_else(|error| self.fail(error, op))
    }

    /// Returns the links, for messages outside any schedule.
    pub(crate) fn links(&mut self) -> &mut [Option<Box<dyn unisono_transports::Link>>] {
        &mut self.fabric.links
    }

    /// Tells the peers that this rank has been waiting in `op` for a while.
    pub(crate) fn announce_wait(&mut self, op: OpDesc) {
        self.watchdog.announce_wait(&mut *self.fabric.control, op);
    }

    /// Returns, for each rank, whether it exited or finalized.
    pub(crate) fn failed_ranks(&self) -> Vec<bool> {
        self.watchdog.failed_ranks()
    }

    /// Returns the error for an operation that waits for `peer`, which has finalized.
    pub(crate) fn departure(&self, peer: Rank) -> ErrorKind {
        self.watchdog.departure(peer)
    }

    /// Returns the operation that `peer` last announced to be waiting in.
    pub(crate) fn last_report(&self, peer: Rank) -> Option<OpDesc> {
        self.watchdog.last_report(peer)
    }

    /// Ends this communicator because of an error found outside the engine. The first error is
    /// kept.
    pub(crate) fn fail_with(&mut self, error: Error, op: Option<OpDesc>) -> Result<()> {
        self.check_healthy()?;
        self.fail(error, op)
    }
}

/// The regular end.
impl Engine {
    /// Returns true if this rank has left the communicator.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Ends all messages with `reason`, tells the peers that this rank leaves, and closes the
    /// links. Later calls return an error.
    ///
    /// When this returns, the peers' systems have received everything that this rank sent, so its
    /// process may end. They receive the data before the message that this rank leaves.
    pub(crate) fn leave(&mut self, reason: &str) {
        // A forked child must not tell the peers that it leaves, because its parent still uses the
        // communicator.
        if self.left || self.process != fork_guard::current_pid() {
            return;
        }
        self.left = true;
        if std::thread::panicking() {
            self.end(ErrorKind::panicked(self.fabric.rank, "its thread panicked"));
        }
        let left = self.own_error(ErrorKind::abort_request(self.fabric.rank, reason));
        self.messages.fail_all(&left);
        // The goodbye has a channel of its own and may overtake data. A peer that has read it
        // expects nothing more, so the data has to arrive first.
        if self.poisoned.is_none() {
            self.drain_links();
        }
        let control = &mut *self.fabric.control;
        match &self.poisoned {
            None => self.watchdog.goodbye_without_error(control),
            // A shrunk communicator ended for all of its ranks, which is no error.
            Some(_) if self.shrunk => self.watchdog.goodbye(control, None),
            Some(error) => self.watchdog.goodbye(control, Some(error)),
        }
        self.fabric.control.drain(GOODBYE_TIME_MAX);
        self.fabric.links.iter_mut().for_each(|link| *link = None);
        self.poisoned.get_or_insert(left);
    }

    /// Tells the peers the failure of this communicator or of a related one, because the process
    /// ends with an error. Without a failure that this rank has not handled, tells nothing.
    ///
    /// Messages and links stay as they are, because other threads may still use them. This waits
    /// for at most `limit` until the peers' systems have received what it tells.
    pub(crate) fn tell_failure(&mut self, limit: Duration) {
        if self.left || self.process != fork_guard::current_pid() {
            return;
        }
        let Some(reason) = self.watchdog.related_failure() else { return };
        let error = self.poisoned.clone();
        let error = error.unwrap_or_else(|| self.own_error(ErrorKind::left_after(self.fabric.rank, reason)));
        self.watchdog.repeat_error(&mut *self.fabric.control, &error);
        self.fabric.control.drain(GOODBYE_TIME_MAX.min(limit));
    }

    /// Waits until the peers' systems have received everything that was sent. Warns of peers that
    /// do not receive it.
    fn drain_links(&mut self) {
        let begun = self.fabric.wait.now();
        let limit = self.config.timeout.min(DRAIN_TIME_MAX);
        let mut lost = Vec::new();
        for (peer, link) in self.fabric.links.iter_mut().enumerate() {
            let remaining = limit.saturating_sub(self.fabric.wait.now().saturating_sub(begun));
            if link.as_mut().is_some_and(|link| !link.drain(remaining)) {
                lost.push(peer);
            }
        }
        if !lost.is_empty() {
            crate::log::warn_user(&format!(
                "rank {} of {} on {} leaves the communicator, and what it sent last to ranks {lost:?} may be lost: they \
                 have not taken it for {:.1} s. Keep the communicator until they have received it",
                self.fabric.rank,
                self.fabric.ranks,
                self.config.host,
                limit.as_secs_f64()
            ));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave(DROPPED);
    }
}

/// The reason of a rank that has no handle of the communicator any more.
pub(crate) const DROPPED: &str = "the communicator was dropped";
/// Time in which the peers' systems must receive the data that was sent last.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// Time in which the peers' systems must receive the message that this rank leaves.
const GOODBYE_TIME_MAX: Duration = Duration::from_millis(500);
