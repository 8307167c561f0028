//! Descriptors that forked children close. These are pipes and sockets by which peers learn of a
//! death.
//!
//! A child has a copy of every descriptor of its parent. The kernel reports an end only when the
//! last copy is closed. So a child that outlives a rank, such as a process that loads data, would
//! hide the rank's death.

use crate::sys::slot_list::SlotList;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// Lets forked children close a descriptor for as long as this lives. Drop it before the
/// descriptor.
#[derive(Debug)]
pub struct CloseOnFork(&'static AtomicI32);

const FREE: RawFd = -1;
static DESCRIPTORS: SlotList<AtomicI32> = SlotList::new();

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
            |slot: &AtomicI32| slot.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Self(DESCRIPTORS.take(takes, AtomicI32::new(fd)))
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// Replaces every descriptor by an event that nothing else uses.
///
/// The number stays in use, so that the child may drop the objects of its parent and closes no file
/// of its own.
extern "C" fn in_child() {
    let numbers = DESCRIPTORS.values().map(|slot| slot.load(Ordering::Acquire));
    let mut numbers = numbers.filter(|&fd| fd != FREE);
    let Some(first) = numbers.next() else { return };
    let Ok(event) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    for fd in std::iter::once(first).chain(numbers) {
        // SAFETY: the descriptor belongs to a `CloseOnFork` of the parent. The child uses none.
        unsafe { libc::dup3(event.as_fd().as_raw_fd(), fd, libc::O_CLOEXEC) };
    }
}
