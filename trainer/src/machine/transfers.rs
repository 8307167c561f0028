//! Measures all-reduces between threads, and copies in memory.

use std::hint::black_box;
use std::time::Instant;
use unisono::schedule::Collective;
use unisono::{Communicator, Sum};
use unisono_nn::error::Result;
use unisono_plan::cost::Measurement;

/// Sizes in bytes that separate latency from bandwidth.
pub(super) const SIZES: [usize; 6] = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Measures ring all-reduces of these sizes. Returns the shortest of several times per size,
/// because other programs can only add time.
///
/// # Errors
/// Returns the error of a failed collective.
pub fn sweep(groups: Vec<Communicator>, sizes: &[usize]) -> Result<Vec<Measurement>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || points(&group, sizes))).collect();
        let mut results = threads.into_iter().map(|thread| thread.join().expect("no rank panics"));
        results.next().expect("a communicator has ranks")
    })
}

fn points(group: &Communicator, sizes: &[usize]) -> Result<Vec<Measurement>> {
    group.set_algorithm(Collective::AllReduce, Some("ring"))?;
    let point = |&bytes: &usize| {
        let mut values = vec![1.0f32; bytes / 4];
        let mut seconds = f64::INFINITY;
        for _ in 0..ROUNDS {
            // Ranks start together, so that the time has no wait for a late rank.
            group.barrier()?;
            let start = Instant::now();
            group.all_reduce(&mut values, Sum)?;
            // Other programs can only add time.
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        Ok(Measurement { bytes: bytes as f64, seconds })
    };
    sizes.iter().map(point).collect()
}

const ROUNDS: usize = 5;

/// Measures the bytes per second that one thread reads and writes.
pub(super) fn memory_bandwidth() -> f64 {
    let (source, mut copied) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
    let copy = |_| {
        let start = Instant::now();
        // Nothing reads the copy, so the compiler could leave it out.
        copied.copy_from_slice(black_box(&source));
        black_box(&copied);
        start.elapsed().as_secs_f64()
    };
    2.0 * COPY_BYTES as f64 / (0..ROUNDS).map(copy).fold(f64::INFINITY, f64::min)
}

/// Larger than caches.
const COPY_BYTES: usize = 64 << 20;
