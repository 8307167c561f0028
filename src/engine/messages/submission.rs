//! Submissions, which carry messages from the threads that post them to the engine.
//!
//! A thread that posts a message never waits for the engine, which may be busy with a collective.

use crate::engine::messages::matching::{MessageInfo, Pattern};
use crate::error::{Error, Result};
use crate::schedule::Rank;
use crate::sync::{AtomicBool, Mutex};
use std::sync::atomic::Ordering;

/// A message that is to be sent: its bytes, and the receiver of its result.
pub(crate) trait SendTask: Send {
    /// Returns the bytes of the message.
    fn bytes(&self) -> &[u8];
    /// Notes that some of the bytes have moved.
    fn progressed(&self);
    /// Hands over the result and the buffer.
    fn finish(self: Box<Self>, result: Result<()>);
}

/// A message that is to be received: its buffer, and the receiver of its result.
pub(crate) trait RecvTask: Send {
    /// Returns the buffer. It may be longer than the message.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Notes that some of the bytes have moved.
    fn progressed(&self);
    /// Hands over the result and the buffer.
    fn finish(self: Box<Self>, result: Result<MessageInfo>);
}

/// A posted message.
pub(crate) enum Submission {
    Send { to: Rank, tag: u64, task: Box<dyn SendTask> },
    Recv { pattern: Pattern, task: Box<dyn RecvTask> },
}

impl Submission {
    /// Ends the message with `error`.
    pub(crate) fn fail(self, error: &Error) {
        match self {
            Submission::Send { task, .. } => task.finish(Err(error.clone())),
            Submission::Recv { task, .. } => task.finish(Err(error.clone())),
        }
    }
}

/// The posted messages that the engine has not seen yet, in order.
#[derive(Default)]
pub(crate) struct SubmissionQueue {
    list: Mutex<Vec<Submission>>,
    /// Set while the list may have entries, so that an engine looks without the lock.
    filled: AtomicBool,
}

impl SubmissionQueue {
    pub(crate) fn push(&self, submission: Submission) {
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.push(submission);
        // The flag changes only under the lock. So it is never false while the list has an entry
        // that no thread is about to take.
        self.filled.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<Submission> {
        if !self.is_filled() {
            return Vec::new();
        }
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.filled.store(false, Ordering::Release);
        std::mem::take(&mut *list)
    }
}
