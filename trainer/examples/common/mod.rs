//! Helpers of several examples.

#![allow(dead_code)] // each uses a part of it

use unisono::Communicator;

/// Result with errors of any kind, also from other threads.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Runs `body` on every rank, and returns all results.
pub(crate) fn on_ranks<R: Send>(
    ranks: Vec<Communicator>,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Returns the median.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
