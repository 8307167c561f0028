//! How far apart two cores are at this moment.
//!
//! A virtual machine is moved: for seconds its cores share a cache, then they do not, and everything between two
//! ranks takes twice as long. Who was measured in one state is not to be compared with who was measured in the other.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Microseconds of one flag from one core to another, one way; none where there is only one core.
pub(crate) fn hand_over() -> Option<f64> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    let (one, other) = (cores.next()?, cores.next()?);
    let rounds = (0..ROUNDS).map(|_| pingpong(one, other));
    // What interrupts a round only ever makes it longer.
    rounds.flatten().reduce(f64::min)
}

fn pingpong(one: usize, other: usize) -> Option<f64> {
    let flags = [Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0))];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind(other);
            (1..=HANDOVERS).all(|turn| flags[0].wait(turn) && flags[1].raise(turn));
        });
        let asking = scope.spawn(|| {
            bind(one);
            let begun = Instant::now();
            let answered = (1..=HANDOVERS).all(|turn| flags[0].raise(turn) && flags[1].wait(turn));
            answered.then(|| begun.elapsed().as_secs_f64() * 1e6 / HANDOVERS as f64 / 2.0)
        });
        asking.join().ok().flatten()
    })
}

fn bind(core: usize) {
    let mut own = CpuSet::new();
    own.set(core);
    // Where that is not permitted, threads are where they are.
    let _ = sched_setaffinity(None, &own);
}

/// A flag on cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Flag(AtomicU64);

impl Flag {
    fn raise(&self, value: u64) -> bool {
        self.0.store(value, Ordering::Release);
        true
    }

    /// Waits for `value`; bounded, should the other thread not be running.
    fn wait(&self, value: u64) -> bool {
        (0..SPINS_MAX).any(|_| {
            std::hint::spin_loop();
            self.0.load(Ordering::Acquire) >= value
        })
    }
}

const ROUNDS: usize = 3;
const HANDOVERS: u64 = 5_000;
const SPINS_MAX: u32 = 5_000_000;
