//! The abort flag: lets any thread end the communicator while another thread waits in it.

use crate::sync::{AtomicBool, Mutex};
use std::sync::atomic::Ordering;

/// The request to end a communicator, set by `abort` from any thread and read by the waiting
/// thread.
#[derive(Debug, Default)]
pub(crate) struct AbortFlag {
    set: AtomicBool,
    reason: Mutex<String>,
}

impl AbortFlag {
    /// Requests the end of the communicator. The first reason is kept.
    pub(crate) fn raise(&self, reason: &str) {
        let mut kept = self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // All writers hold the lock, so the load needs no order of its own.
        if !self.set.load(Ordering::Relaxed) {
            reason.clone_into(&mut kept);
            // The flag comes after the text, so that a reader of the flag finds the reason.
            self.set.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_raised(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Returns the reason if the flag is raised.
    pub(super) fn reason(&self) -> Option<String> {
        self.is_raised().then(|| self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}
