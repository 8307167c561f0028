//! Descriptors that forked children close: pipes and sockets by which peers learn of a death.
//!
//! A child has a copy of every descriptor of its parent. The kernel reports an end only when the
//! last copy is closed. So a child that outlives a rank, such as a process that loads data, would
//! hide the rank's death.
//!
//! # Data race freedom
//!
//! Slots are atomic words in a list that only grows, and that no lock protects. The child of a
//! process with threads may therefore read it.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// Lets forked children close a descriptor for as long as this lives. Drop it before the
/// descriptor.
#[derive(Debug)]
pub struct CloseOnFork(&'static Slot);

/// A descriptor, or `FREE`.
#[derive(Debug)]
struct Slot {
    fd: AtomicI32,
    next: *mut Slot,
}

// SAFETY: `next` is written before the slot is shared, and points to a slot that is never freed.
unsafe impl Sync for Slot {}

const FREE: RawFd = -1;
static FIRST: AtomicPtr<Slot> = AtomicPtr::new(null_mut());

impl CloseOnFork {
    /// Lets children that are forked from now on close `fd`.
    pub fn new(fd: BorrowedFd<'_>) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler does only what a child of a process with threads may do.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let fd = fd.as_raw_fd();
        let takes =
            |slot: &&Slot| slot.fd.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Self(slots().find(takes).unwrap_or_else(|| add_slot(fd)))
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        self.0.fd.store(FREE, Ordering::Release);
    }
}

fn slots() -> impl Iterator<Item = &'static Slot> {
    let next = |at: *mut Slot| {
        // SAFETY: the list has null or slots that live forever.
        unsafe { at.as_ref() }
    };
    std::iter::successors(next(FIRST.load(Ordering::Acquire)), move |slot| next(slot.next))
}

fn add_slot(fd: RawFd) -> &'static Slot {
    let slot = Box::leak(Box::new(Slot { fd: AtomicI32::new(fd), next: FIRST.load(Ordering::Acquire) }));
    let slot = &raw mut *slot;
    loop {
        // SAFETY: nobody else has the slot yet, and it lives forever.
        let next = unsafe { (*slot).next };
        match FIRST.compare_exchange(next, slot, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as above.
            Ok(_) => return unsafe { &*slot },
            // SAFETY: as above.
            Err(newer) => unsafe { (*slot).next = newer },
        }
    }
}

/// Puts an event, which nobody knows, in the place of every descriptor.
///
/// The number stays in use, so that the child may drop the objects of its parent and closes no file
/// of its own.
extern "C" fn in_child() {
    let mut numbers = slots().map(|slot| slot.fd.load(Ordering::Acquire)).filter(|&fd| fd != FREE);
    let Some(first) = numbers.next() else { return };
    let Ok(event) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    for fd in std::iter::once(first).chain(numbers) {
        // SAFETY: the descriptor belongs to a `CloseOnFork` of the parent. The child uses none.
        unsafe { libc::dup3(event.as_fd().as_raw_fd(), fd, libc::O_CLOEXEC) };
    }
}
