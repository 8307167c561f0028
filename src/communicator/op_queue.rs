//! Operations of one communicator, one after the other in the order they were asked for.
//!
//! Every operation takes a ticket when the caller asks for it, whether it runs
//! at once on the caller's thread or later on another; it runs when all before
//! it are through. So all ranks see one order, however many threads are at work.

use crate::sync::{AtomicU64, Condvar, Mutex, thread_local};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hands out tickets and lets them through in order.
#[derive(Debug, Default)]
pub(super) struct TicketLock {
    next: AtomicU64,
    serving: AtomicU64,
    /// How many wait below; kept in the mutex so that no wake-up is lost.
    waiting: Mutex<usize>,
    /// Read without the mutex by the one who passes: is there anybody to wake?
    sleepers: AtomicU64,
    turn: Condvar,
}

thread_local! {
    /// The turnstile whose turn this thread has; only its address counts.
    static HELD_BY_THREAD: Cell<*const TicketLock> = const { Cell::new(ptr::null()) };
}

/// The thread that uses the engine of one communicator.
///
/// A call from within a call on the same thread, as a signal handler or a log subscriber may make one,
/// would wait for itself. The mark lets such a call fail instead.
#[derive(Debug, Default)]
pub(super) struct ThreadMark(AtomicUsize);

thread_local! {
    /// A byte whose address identifies this thread.
    static THREAD_ID: Cell<u8> = const { Cell::new(0) };
}

/// Holds a [`ThreadMark`] until it is dropped.
#[derive(Debug)]
pub(super) struct MarkGuard<'m>(&'m ThreadMark);

impl ThreadMark {
    /// Marks this thread as the user.
    #[inline]
    pub(super) fn set(&self) -> MarkGuard<'_> {
        self.0.store(thread_id(), Ordering::Relaxed);
        MarkGuard(self)
    }

    /// Returns true if this thread is the user. Other threads' marks never equal this thread's.
    pub(super) fn is_this_thread(&self) -> bool {
        self.0.load(Ordering::Relaxed) == thread_id()
    }
}

impl Drop for MarkGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Relaxed);
    }
}

#[inline]
fn thread_id() -> usize {
    THREAD_ID.with(|byte| ptr::from_ref(byte).addr())
}

/// A place in the queue.
#[derive(Debug)]
pub(super) struct Ticket(u64);

/// Held while it is one's turn; the next one goes when it is dropped.
#[derive(Debug)]
pub(super) struct TicketGuard<'t> {
    lock: &'t TicketLock,
    ticket: u64,
    /// What this thread had before.
    previous: *const TicketLock,
}

impl TicketLock {
    /// The next place in the queue. A ticket must be used, or nobody after it gets through.
    pub(super) fn take_ticket(&self) -> Ticket {
        Ticket(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether every ticket handed out has passed: nothing that was asked for is still to come.
    pub(super) fn is_idle(&self) -> bool {
        self.next.load(Ordering::Relaxed) == self.serving.load(Ordering::Acquire)
    }

    /// How many tickets have not had their turn.
    pub(super) fn waiting(&self) -> u64 {
        let passed = self.serving.load(Ordering::Acquire) + 1;
        self.next.load(Ordering::Relaxed).saturating_sub(passed)
    }

    /// Waits for the ticket's turn.
    pub(super) fn wait_for_turn(&self, ticket: Ticket) -> TicketGuard<'_> {
        let Ticket(ticket) = ticket;
        if self.serving.load(Ordering::Acquire) != ticket {
            self.sleep(ticket);
        }
        TicketGuard { lock: self, ticket, previous: HELD_BY_THREAD.with(|held| held.replace(self)) }
    }

    /// Whether this thread has the turn: what it waited for behind its own ticket would never come.
    pub(super) fn is_held_by_this_thread(&self) -> bool {
        ptr::eq(HELD_BY_THREAD.with(Cell::get), self)
    }

    fn sleep(&self, ticket: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *waiting += 1;
        // With the store of `serving` in `drop`: either we see the new number, or it sees us.
        self.sleepers.store(*waiting as u64, Ordering::SeqCst);
        while self.serving.load(Ordering::SeqCst) != ticket {
            waiting = self.turn.wait(waiting).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *waiting -= 1;
        self.sleepers.store(*waiting as u64, Ordering::SeqCst);
    }
}

impl Drop for TicketGuard<'_> {
    fn drop(&mut self) {
        HELD_BY_THREAD.with(|held| held.set(self.previous));
        self.lock.serving.store(self.ticket + 1, Ordering::SeqCst);
        if self.lock.sleepers.load(Ordering::SeqCst) > 0 {
            let _waiting = self.lock.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.lock.turn.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_lock_admits_threads_in_ticket_order() {
        let turnstile = TicketLock::default();
        let passed = Mutex::new(Vec::new());
        let tickets: Vec<_> = (0..200).map(|_| turnstile.take_ticket()).collect();
        assert!(!turnstile.is_idle());
        std::thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let (turnstile, passed) = (&turnstile, &passed);
                scope.spawn(move || {
                    let turn = turnstile.wait_for_turn(ticket);
                    passed.lock().unwrap().push(turn.ticket);
                });
            }
        });
        assert_eq!(*passed.lock().unwrap(), (0..200).collect::<Vec<_>>());
        assert!(turnstile.is_idle());
    }
}
