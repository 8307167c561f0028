//! Helpers of several examples.

#![allow(dead_code)] // each uses a part of it

#[path = "../../tests/support/slow.rs"]
pub(crate) mod slow;

use unisono::Communicator;
use unisono_trainer::parallel::DataParallel;

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

/// Checks that all ranks have bitwise equal weights, and returns a hash of them.
pub(crate) fn agreed_weights(strategy: &mut dyn DataParallel, group: &Communicator) -> Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    strategy.for_each_shard(&mut |kept| {
        for weight in &*kept.weights {
            hash = (hash ^ u64::from(weight.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    })?;
    let mut all = vec![0; group.size()];
    group.all_gather(&[hash], &mut all)?;
    match all.iter().position(|other| *other != hash) {
        Some(rank) => Err(format!("rank {rank} has other weights than rank {}", group.rank()).into()),
        None => Ok(hash),
    }
}

/// Returns the median.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
