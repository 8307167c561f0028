//! Fast identity of the process. It is needed because a forked child must not use the parent's
//! resources.
//!
//! A word is kept in a page that the kernel wipes in children, so a check costs only a load and no
//! system call. Parent and child both have the sockets, the shared memory and the events of the
//! parent. The child may close them. If a child uses them, or sends anything to peers, it harms the
//! parent.

use crate::sys::segment::Segment;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Returns a number that identifies this process. It differs in a forked child.
#[inline]
pub fn current_pid() -> u64 {
    static PAGE: OnceLock<Option<Segment>> = OnceLock::new();
    let Some(page) = PAGE.get_or_init(wipe_on_fork_page) else { return u64::from(std::process::id()) };
    match page.word(0).load(Ordering::Relaxed) {
        0 => init_pid(page),
        pid => pid,
    }
}

/// Panics in a forked child of process `owner`, which does not have memory that `owner` shares.
#[inline]
pub(crate) fn check_owner(owner: u64) {
    if owner != current_pid() {
        refuse_child(owner);
    }
}

#[cold]
fn refuse_child(owner: u64) -> ! {
    panic!(
        "memory that process {owner} shares with its peers is not in its forked child {}; copy it to ordinary \
         memory before the fork",
        std::process::id()
    );
}

/// Returns a page that children find empty, or `None` if the system cannot do that.
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
