//! What this machine allows: memory bandwidth and the time of one hand-over, measured in the same run.

use super::bind::Bind;
use super::test::Kind;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use unisono::{Communicator, DType, Op};
use unisono_cuda::{Finish, Source, Store, Target, copy_to, reduce_to};

/// The limits. Bandwidths count bytes read plus bytes written, in GB/s.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Floor {
    /// Copy past the cache, one core.
    pub(super) copy_gbs_one_core: f64,
    /// Copy past the cache, all cores together.
    pub(super) copy_gbs_all_cores: f64,
    /// float32 sum of two into one past the cache, all cores together.
    pub(super) reduce_gbs: f64,
    /// A flag from one thread to another, one way, in microseconds.
    pub(super) handover_us: f64,
}

/// Rank 0 measures while the others wait; everybody gets the result.
pub(super) fn measure(comm: &Communicator) -> Result<Floor, String> {
    let mut values = [0.0; 4];
    if comm.rank() == 0 {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        values = [copy(1), copy(cores), reduce(cores), if cores > 1 { handover() } else { 0.0 }];
    }
    comm.broadcast(&mut values, 0).map_err(|error| error.to_string())?;
    let [copy_gbs_one_core, copy_gbs_all_cores, reduce_gbs, handover_us] = values;
    Ok(Floor { copy_gbs_one_core, copy_gbs_all_cores, reduce_gbs, handover_us })
}

impl Floor {
    /// Microseconds that an operation takes at least.
    pub(super) fn micros(&self, kind: Kind, size: usize, ranks: usize) -> f64 {
        let memory = kind.fewest_bytes(size, ranks) as f64 / self.copy_gbs_all_cores.max(1e-9) / 1e3;
        memory.max(self.handover_us)
    }
}

impl std::fmt::Display for Floor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "copy {:.1} GB/s on one core, {:.1} on all; sum {:.1} on all; hand-over {:.2} us",
            self.copy_gbs_one_core, self.copy_gbs_all_cores, self.reduce_gbs, self.handover_us
        )
    }
}

fn copy(threads: usize) -> f64 {
    stream(threads, 2, |target, one, _| copy_to(Store::Stream, target, one))
}

fn reduce(threads: usize) -> f64 {
    stream(threads, 3, |target, one, other| {
        reduce_to(Store::Stream, DType::F32, Op::Sum, Finish::Keep, target, &[one, other]);
    })
}

/// GB/s of `threads` threads doing `work` on memory of their own; `passes` bytes move for each byte of a buffer.
fn stream(threads: usize, passes: usize, work: impl Fn(Target<'_>, Source<'_>, Source<'_>) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let seconds: Vec<f64> = std::thread::scope(|scope| {
        let thread = || {
            let (one, other) = (vec![1u8; STREAM_BYTES], vec![1u8; STREAM_BYTES]);
            let mut target = vec![0u8; STREAM_BYTES];
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                barrier.wait();
                let begun = Instant::now();
                work(target.as_mut_slice().into(), one.as_slice().into(), other.as_slice().into());
                barrier.wait();
                times.push(begun.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let slowest = seconds.iter().copied().fold(1e-9, f64::max);
    (threads * passes * STREAM_BYTES) as f64 / slowest / 1e9
}

/// Microseconds of one flag from one core to another, one way: the median of some rounds.
fn handover() -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| pingpong()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// A flag on cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Flag(AtomicU64);

impl Flag {
    /// Waits for `value`; bounded, should the other thread not be running.
    fn wait(&self, value: u64) -> bool {
        (0..SPINS_MAX).any(|_| {
            std::hint::spin_loop();
            self.0.load(Ordering::Acquire) >= value
        })
    }
}

fn pingpong() -> f64 {
    let flags = [Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0))];
    let answer = || {
        Bind::Core.apply(1);
        (1..=HANDOVERS).all(|turn| {
            let seen = flags[0].wait(turn);
            flags[1].0.store(turn, Ordering::Release);
            seen
        })
    };
    let ask = || {
        Bind::Core.apply(0);
        let begun = Instant::now();
        let answered = (1..=HANDOVERS).all(|turn| {
            flags[0].0.store(turn, Ordering::Release);
            flags[1].wait(turn)
        });
        if answered { begun.elapsed().as_secs_f64() * 1e6 / HANDOVERS as f64 / 2.0 } else { 0.0 }
    };
    std::thread::scope(|scope| {
        scope.spawn(answer);
        scope.spawn(ask).join().unwrap_or(0.0)
    })
}

/// Well out of every cache.
const STREAM_BYTES: usize = 64 << 20;
const ROUNDS: usize = 5;
const HANDOVERS: u64 = 20_000;
const SPINS_MAX: u32 = 50_000_000;
