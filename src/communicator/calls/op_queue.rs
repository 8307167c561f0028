//! The queue of operations of one communicator, in the order of the calls.
//!
//! Every operation takes a ticket when it is called, even if it runs later on another thread. It
//! runs when all earlier tickets are done. So there is one order of operations, even if many
//! threads make calls.

use crate::sync::{AtomicU64, Condvar, Mutex, thread_local};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A lock that admits its tickets in order.
#[derive(Debug, Default)]
pub(in crate::communicator) struct TicketLock {
    next: AtomicU64,
    serving: AtomicU64,
    /// The number of waiting threads. The mutex protects it so that no wake-up is lost.
    waiting: Mutex<usize>,
    /// The same number for the thread that leaves, which reads it without the mutex.
    sleepers: AtomicU64,
    turn: Condvar,
}

thread_local! {
    /// The lock that this thread holds. Only its address is used.
    static HELD_BY_THREAD: Cell<*const TicketLock> = const { Cell::new(ptr::null()) };
}

/// The thread that uses the engine of one communicator.
///
/// A signal handler or a log subscriber may make a call from within a call on the same thread. It
/// would wait for itself, so the mark lets it fail instead.
#[derive(Debug, Default)]
pub(in crate::communicator) struct ThreadMark(AtomicUsize);

thread_local! {
    /// A byte whose address identifies this thread.
    static THREAD_ID: Cell<u8> = const { Cell::new(0) };
}

/// Holds a [`ThreadMark`] until it is dropped.
#[derive(Debug)]
pub(in crate::communicator) struct MarkGuard<'m>(&'m ThreadMark);

impl ThreadMark {
    /// Marks this thread as the user.
    #[inline]
    pub(in crate::communicator) fn set(&self) -> MarkGuard<'_> {
        // A thread sees its own stores, and it never takes a mark of another thread for its own. So
        // the mark needs no memory order.
        self.0.store(thread_id(), Ordering::Relaxed);
        MarkGuard(self)
    }

    /// Returns true if this thread is the user. Other threads' marks never equal this thread's.
    pub(in crate::communicator) fn is_this_thread(&self) -> bool {
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

/// A position in the queue.
#[derive(Debug)]
pub(in crate::communicator) struct Ticket(u64);

/// Holds the lock. Dropping it admits the next ticket.
#[derive(Debug)]
pub(in crate::communicator) struct TicketGuard<'t> {
    lock: &'t TicketLock,
    ticket: u64,
    /// The lock that this thread held before.
    previous: *const TicketLock,
}

impl Ticket {
    /// Returns the position, from 0.
    pub(in crate::communicator) fn position(&self) -> u64 {
        self.0
    }
}

impl TicketLock {
    /// Returns the next ticket. Every ticket must be used, or no later one is admitted.
    pub(in crate::communicator) fn take_ticket(&self) -> Ticket {
        // The number alone decides the order of calls. `serving` orders the memory that one turn
        // leaves to the next.
        Ticket(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns true if every ticket has been served.
    pub(in crate::communicator) fn is_idle(&self) -> bool {
        self.next.load(Ordering::Relaxed) == self.serving.load(Ordering::Acquire)
    }

    /// Returns the number of tickets that have not been admitted.
    pub(in crate::communicator) fn waiting(&self) -> u64 {
        let passed = self.serving.load(Ordering::Acquire) + 1;
        self.next.load(Ordering::Relaxed).saturating_sub(passed)
    }

    /// Waits until the ticket is admitted.
    pub(in crate::communicator) fn wait_for_turn(&self, ticket: Ticket) -> TicketGuard<'_> {
        let Ticket(ticket) = ticket;
        if self.serving.load(Ordering::Acquire) != ticket {
            self.sleep(ticket);
        }
        TicketGuard { lock: self, ticket, previous: HELD_BY_THREAD.with(|held| held.replace(self)) }
    }

    /// Returns true if this thread holds the lock. A later ticket that it waited for would never be
    /// served.
    pub(in crate::communicator) fn is_held_by_this_thread(&self) -> bool {
        ptr::eq(HELD_BY_THREAD.with(Cell::get), self)
    }

    fn sleep(&self, ticket: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *waiting += 1;
        // Together with the store of `serving` in `drop`, this ensures that this thread sees the
        // new number or that `drop` sees this thread.
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
            // A thread that has just read `serving` holds this lock until it sleeps, so no wake-up
            // is lost. All sleepers are woken, because any of them may have the next ticket.
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
        let ticket_lock = TicketLock::default();
        let passed = Mutex::new(Vec::new());
        let tickets: Vec<_> = (0..200).map(|_| ticket_lock.take_ticket()).collect();
        assert!(!ticket_lock.is_idle());
        std::thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let (ticket_lock, passed) = (&ticket_lock, &passed);
                scope.spawn(move || {
                    let turn = ticket_lock.wait_for_turn(ticket);
                    passed.lock().unwrap().push(turn.ticket);
                });
            }
        });
        assert_eq!(*passed.lock().unwrap(), (0..200).collect::<Vec<_>>());
        assert!(ticket_lock.is_idle());
    }
}
