//! Which process this is, told fast: after a fork, what the parent has is not the child's to use.
//!
//! A word is kept in a page that the kernel wipes in children, so that looking costs a load and no system call. Both
//! have the sockets, the shared memory and the events of the parent: who closes them may, who uses them, or tells peers
//! anything, harms the parent.

use crate::shm::segment::Segment;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// A number that is this process's: another one than before in a process that was forked.
#[inline]
pub fn current_pid() -> u64 {
    static PAGE: OnceLock<Option<Segment>> = OnceLock::new();
    let Some(page) = PAGE.get_or_init(wipe_on_fork_page) else { return u64::from(std::process::id()) };
    match page.word(0).load(Ordering::Relaxed) {
        0 => init_pid(page),
        pid => pid,
    }
}

/// A page that children find empty; none if the system cannot do that.
fn wipe_on_fork_page() -> Option<Segment> {
    Segment::private(PAGE_BYTES).ok().filter(Segment::wipe_on_fork)
}

#[cold]
fn init_pid(page: &Segment) -> u64 {
    let pid = u64::from(std::process::id());
    page.word(0).store(pid, Ordering::Relaxed);
    pid
}

const PAGE_BYTES: usize = 4096;
