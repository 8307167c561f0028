//! The communicators of one rank that were split from each other.
//!
//! A rank that waits in one of them says so in the others: whoever waits for it there then knows what keeps it. Two
//! ranks that use two communicators in different orders wait for each other, and each is told what the other is in.

use crate::op_desc::OpDesc;
use crate::sync::Mutex;
use std::sync::{PoisonError, Weak};

/// One that can be told so.
pub(crate) trait RegisteredComm: Send + Sync {
    /// Tells its ranks that this one waits in `call` of another communicator, unless it is in use itself.
    fn notify_blocked(&self, call: OpDesc);
}

/// All of them.
#[derive(Default)]
pub(crate) struct CommRegistry(Mutex<Vec<Weak<dyn RegisteredComm>>>);

impl CommRegistry {
    /// One more.
    pub(crate) fn register(&self, sibling: Weak<dyn RegisteredComm>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sibling| sibling.strong_count() > 0);
        all.push(sibling);
    }

    /// This rank waits in `call` of one of them.
    pub(crate) fn notify_blocked(&self, call: OpDesc) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(Weak::upgrade).for_each(|sibling| sibling.notify_blocked(call));
    }
}
