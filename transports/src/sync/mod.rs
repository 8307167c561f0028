//! Synchronization types, from the standard library or from a model checker.
//!
//! `RUSTFLAGS="--cfg loom"` replaces the atomics of the shared-memory protocols. Loom visits every
//! interleaving of them. `--cfg shuttle` replaces the threads, locks, waits and the clock of larger
//! state machines, in the tests of this crate: see `sync::shuttle`.

#[cfg(shuttle)]
pub mod shuttle;

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(any(loom, all(test, shuttle))))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic::AtomicBool},
    thread,
    time::Instant,
};

#[cfg(all(test, shuttle))]
pub(crate) use crate::sync::shuttle::Instant;
#[cfg(all(test, shuttle))]
pub(crate) use crate::sync::shuttle::sync::{Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(all(test, shuttle))]
pub(crate) use crate::sync::shuttle::thread;

/// Marks a point before an effect that other threads see without these types, such as data on a
/// descriptor. In models, other threads may run here.
#[cfg(not(any(loom, all(test, shuttle))))]
#[inline(always)]
pub(crate) fn step() {}

#[cfg(all(test, shuttle))]
pub(crate) use crate::sync::shuttle::step;

#[cfg(not(loom))]
use rustix::event::{PollFd, Timespec};
#[cfg(not(loom))]
use std::time::Duration;

/// Waits for one of `fds`, but not longer than `left`, and returns how many are ready.
#[cfg(not(any(loom, all(test, shuttle))))]
pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Duration) -> rustix::io::Result<usize> {
    rustix::event::poll(fds, Some(&timespec(left)))
}

/// Waits as the function above does. In a model, the wait lets other threads run and lets time
/// pass.
#[cfg(all(test, shuttle))]
pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Duration) -> rustix::io::Result<usize> {
    let deadline = Instant::now() + left;
    loop {
        let ready = rustix::event::poll(fds, Some(&timespec(Duration::ZERO)))?;
        if ready > 0 || Instant::now() >= deadline {
            return Ok(ready);
        }
        thread::sleep(crate::sync::shuttle::TICK);
    }
}

#[cfg(not(loom))]
fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}
