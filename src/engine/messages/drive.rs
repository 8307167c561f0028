//! The functions by which waiting threads and the background thread move messages.
//!
//! An operation that waits moves messages, too, in [`wait_round`](crate::engine::wait::wait_round).

use crate::engine::Engine;
use crate::engine::messages::matching::{MessageInfo, Pattern};
use crate::engine::messages::submission::{Submission, SubmissionQueue};
use crate::engine::watchdog::ROUNDS_WITHOUT_CLOCK;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Returns the queue through which other threads post messages.
    pub(crate) fn submissions(&self) -> &Arc<SubmissionQueue> {
        self.messages.submissions()
    }

    /// Returns true if the background thread has to move messages of this rank.
    pub(crate) fn has_messages(&self) -> bool {
        self.messages.is_active()
    }

    /// Returns true if sends are under way. These go on after the last handle of the communicator
    /// is dropped.
    pub(crate) fn has_unsent_messages(&self) -> bool {
        self.messages.unsent() > 0
    }

    /// Takes up a message that this thread posts, and moves all messages as far as possible.
    pub(crate) fn post_message(&mut self, submission: Submission) {
        if let Err(error) = self.check_healthy() {
            return submission.fail(&error);
        }
        // Messages that are in the queue were posted before this one, so they go first.
        self.messages.take_submissions();
        self.messages.submit(submission);
        self.drive_messages(0);
    }

    /// Moves messages while no operation runs. Returns whether any moved. `round` counts the calls
    /// without progress; in later ones, news of the peers are read.
    ///
    /// An error ends the communicator and all messages.
    pub(crate) fn drive_messages(&mut self, round: u32) -> bool {
        let moved = self.check_healthy().and_then(|()| self.try_drive(round));
        moved.unwrap_or_else(|error| {
            let error = match &self.poisoned {
                // After a failure, the error of this moment is a consequence. All calls return the
                // first error.
                Some(first) => first.clone(),
                None => self.fail(error.clone(), None).err().unwrap_or(error),
            };
            self.messages.fail_all(&error);
            false
        })
    }

    fn try_drive(&mut self, round: u32) -> Result<bool> {
        let moved = self.messages.progress(&mut self.fabric.links)?;
        self.traffic.add_bytes(self.messages.take_received_bytes());
        if round >= ROUNDS_WITHOUT_CLOCK {
            let now = self.fabric.wait.now();
            if self.watchdog.poll_between_ops(&mut *self.fabric.control, now)? {
                self.end_messages_of_leavers();
            }
        }
        Ok(moved)
    }

    /// Ends the messages that wait for ranks that have left the communicator.
    fn end_messages_of_leavers(&mut self) {
        let left = self.watchdog.long_finalized();
        // A rank may leave directly after its last message. So only a rank of which nothing is left
        // to read ends the messages that wait for it.
        for peer in self.messages.awaited_in_vain().filter(|&peer| left[peer]).collect::<Vec<_>>() {
            let error = self.finalized_error(peer);
            self.messages.fail_peer(peer, &error);
        }
        let rank = self.fabric.rank;
        let mut others = (0..left.len()).filter(|&peer| peer != rank);
        let is_silent = |peer: Rank| left[peer] && self.messages.is_drained(peer);
        if self.messages.awaits_any_source() && left.len() > 1 && others.all(is_silent) {
            // All other ranks have left, so the error may name any of them.
            let error = self.finalized_error(if rank == 0 { 1 } else { 0 });
            self.messages.fail_any_source(&error);
        }
    }

    fn finalized_error(&self, peer: Rank) -> Error {
        let error = Error::new(self.watchdog.departure(peer));
        error.with_rank(self.fabric.rank, &self.config.host, None)
    }

    /// Lets time pass between two calls of [`Engine::drive_messages`].
    pub(crate) fn pause(&mut self, round: u32) {
        self.fabric.wait.pause_for(round, &mut self.messages.partners());
    }

    /// Ends the communicator because a message did not move in time.
    pub(crate) fn message_timeout(&mut self, what: String, peer: Option<Rank>, waited: Duration) -> Error {
        let error = Error::new(ErrorKind::MessageTimeout { what, peer, after: waited });
        let error = self.fail(error.clone(), None).err().unwrap_or(error);
        self.messages.fail_all(&error);
        error
    }

    /// Returns the first message that has arrived and that `pattern` accepts.
    pub(crate) fn probe(&mut self, pattern: &Pattern) -> Result<Option<MessageInfo>> {
        // A program may call this function in a loop without any other call. So the news of the
        // peers is read here, or a failed peer would never be noticed.
        self.drive_messages(ROUNDS_WITHOUT_CLOCK);
        self.check_healthy()?;
        self.messages.probe(pattern, &mut self.fabric.links).or_else(|error| {
            self.fail(error, None)?;
            Ok(None)
        })
    }
}
