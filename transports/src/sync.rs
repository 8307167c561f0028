//! What threads meet by: the standard library's, or a model checker's.
//!
//! `RUSTFLAGS="--cfg loom"` swaps the atomics of the shared-memory protocols, whose every interleaving loom visits.
//! `--cfg shuttle` swaps, in the tests of this crate, the threads, locks and waits of larger machines, with the clock: see
//! [`model`](crate::testing::shuttle).

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(not(any(loom, all(test, shuttle))))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic::AtomicBool},
    thread,
    time::Instant,
};

#[cfg(all(test, shuttle))]
pub(crate) use crate::testing::shuttle::Instant;
#[cfg(all(test, shuttle))]
pub(crate) use crate::testing::shuttle::sync::{Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(all(test, shuttle))]
pub(crate) use crate::testing::shuttle::thread;

/// Before what other threads see and none of these shows, such as what a descriptor has: in models, they may come in here.
#[cfg(not(any(loom, all(test, shuttle))))]
#[inline(always)]
pub(crate) fn step() {}

#[cfg(all(test, shuttle))]
pub(crate) use crate::testing::shuttle::step;

#[cfg(not(loom))]
use rustix::event::{PollFd, Timespec};
#[cfg(not(loom))]
use std::time::Duration;

/// Waits for one of `fds`, for no longer than `left`; how many are ready.
#[cfg(not(any(loom, all(test, shuttle))))]
pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Duration) -> rustix::io::Result<usize> {
    rustix::event::poll(fds, Some(&timespec(left)))
}

/// As that: who waits lets the others go on, and time pass.
#[cfg(all(test, shuttle))]
pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Duration) -> rustix::io::Result<usize> {
    let deadline = Instant::now() + left;
    loop {
        let ready = rustix::event::poll(fds, Some(&timespec(Duration::ZERO)))?;
        if ready > 0 || Instant::now() >= deadline {
            return Ok(ready);
        }
        thread::sleep(crate::testing::shuttle::TICK);
    }
}

#[cfg(not(loom))]
fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}
