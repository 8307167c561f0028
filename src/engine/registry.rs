//! The related communicators of one rank. Communicators are related if one was made of the other,
//! or both of the same one.
//!
//! A rank that waits in one communicator announces this in the others, so that ranks that wait for
//! it there learn the reason. For example, two ranks that use two communicators in different orders
//! wait for each other. Each then learns in which operation the other waits.
//!
//! A program often drops its other communicators after one of them has failed. Ranks that wait for
//! this one there may share no communicator with the rank at fault, so the goodbyes tell them the
//! failure.

use crate::error::{AbortCause, ErrorKind};
use crate::op_desc::OpDesc;
use crate::sync::{Instant, Mutex, MutexGuard, thread};
use std::sync::{PoisonError, TryLockError, Weak};
use std::time::Duration;

/// A communicator that announces waits of others to its ranks.
pub(crate) trait RegisteredComm: Send + Sync {
    /// Announces that this rank waits in `op` of another communicator, unless this communicator is
    /// in use.
    fn notify_blocked(&self, op: OpDesc);
}

/// All related communicators of one rank.
#[derive(Default)]
pub(crate) struct CommRegistry(Mutex<RelatedComms>);

#[derive(Default)]
struct RelatedComms {
    comms: Vec<Weak<dyn RegisteredComm>>,
    /// The first failure since this rank made the last communicator, as text.
    failure: Option<String>,
}

impl CommRegistry {
    fn lock(&self) -> MutexGuard<'_, RelatedComms> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the registry for a communicator that fails or ends, perhaps because its process ends.
    ///
    /// A signal handler may end the process on a thread that holds the lock. So this waits only for
    /// a limited time, and returns `None` then.
    fn lock_at_end(&self) -> Option<MutexGuard<'_, RelatedComms>> {
        let begun = Instant::now();
        loop {
            match self.0.try_lock() {
                Ok(related) => return Some(related),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_TIME_MAX => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            }
        }
    }

    /// Adds a communicator.
    ///
    /// A rank that makes one after a failure has handled the failure, for example by a shrink. So
    /// its later goodbyes do not tell it.
    pub(crate) fn register(&self, comm: Weak<dyn RegisteredComm>) {
        let mut related = self.lock();
        related.failure = None;
        related.comms.retain(|comm| comm.strong_count() > 0);
        related.comms.push(comm);
    }

    /// Announces in all communicators that this rank waits in `op` of one of them.
    pub(crate) fn notify_blocked(&self, op: OpDesc) {
        let comms = self.lock().comms.clone();
        // The list is a copy, so that its lock is not held while other communicators are called,
        // which take locks of their own.
        comms.iter().filter_map(Weak::upgrade).for_each(|comm| comm.notify_blocked(op));
    }

    /// Records that a communicator of `ranks` ranks has failed. The first failure is kept,
    /// because later ones may be its consequences.
    pub(crate) fn record_failure(&self, ranks: usize, kind: &ErrorKind) {
        // A rank that shrinks without a failure goes on.
        if matches!(kind, ErrorKind::Aborted { cause: AbortCause::Shrink, .. }) {
            return;
        }
        let Some(mut related) = self.lock_at_end() else { return };
        related.failure.get_or_insert_with(|| match kind.departure_reason() {
            // The failure is passed on as it is. A text that grew with each rank on its way would
            // soon be cut off.
            Some(reason) => reason.to_owned(),
            None => format!("a related communicator of {ranks} ranks failed: {kind}"),
        });
    }

    /// Returns the failure that this rank has not handled, if there was one.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lock_at_end().and_then(|related| related.failure.clone())
    }
}

/// Time for which the end of a communicator waits for another thread, which holds the lock only for
/// moments.
const LOCK_TIME_MAX: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(100);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_communicator_does_not_wait_for_ever() {
        let (registry, kind) = (CommRegistry::default(), ErrorKind::PeerFinalized { peer: 1 });
        let related = registry.lock();
        registry.record_failure(2, &kind);
        assert_eq!(registry.failure(), None);
        drop(related);
        registry.record_failure(2, &kind);
        let text = format!("a related communicator of 2 ranks failed: {kind}");
        assert_eq!(registry.failure(), Some(text));
    }
}
