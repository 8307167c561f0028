//! The related communicators of one rank.
//!
//! A rank that waits in one communicator announces this in the others, so that ranks that wait for
//! it there learn the reason. For example, two ranks that use two communicators in different orders
//! wait for each other. Each then learns in which operation the other waits.

use crate::op_desc::OpDesc;
use crate::sync::Mutex;
use std::sync::{PoisonError, Weak};

/// A communicator that announces waits of others to its ranks.
pub(crate) trait RegisteredComm: Send + Sync {
    /// Announces that this rank waits in `op` of another communicator, unless this communicator is
    /// in use.
    fn notify_blocked(&self, op: OpDesc);
}

/// All related communicators of one rank.
#[derive(Default)]
pub(crate) struct CommRegistry(Mutex<Vec<Weak<dyn RegisteredComm>>>);

impl CommRegistry {
    /// Adds a communicator.
    pub(crate) fn register(&self, comm: Weak<dyn RegisteredComm>) {
        let mut comms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        comms.retain(|comm| comm.strong_count() > 0);
        comms.push(comm);
    }

    /// Announces in all communicators that this rank waits in `op` of one of them.
    pub(crate) fn notify_blocked(&self, op: OpDesc) {
        let comms = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The list is a copy, so that its lock is not held while other communicators are called,
        // which take locks of their own.
        comms.iter().filter_map(Weak::upgrade).for_each(|comm| comm.notify_blocked(op));
    }
}
