//! Time of communication: α for each message in sequence, and bytes divided by β.
//!
//! Sources: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994. Thakur
//! et al., "Optimization of collective communication operations in MPICH", 2005, for the message
//! counts. The counts here are those that the library's algorithms state, and its checker verifies
//! them.

use serde::Serialize;
use unisono::schedule::{Algorithm, Collective, GroupSpec, find};
use unisono_nn::error::{Error, Result};
use unisono_parallel::data_parallel::remote_fraction;

/// Link: seconds per message without bytes, and bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// α in seconds.
    pub alpha: f64,
    /// β in bytes per second.
    pub beta: f64,
}

/// Measured time of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Size of the whole buffer in bytes.
    pub bytes: f64,
    /// Time in seconds.
    pub seconds: f64,
}

impl Link {
    /// Returns the seconds of `messages` messages in sequence, with `bytes` bytes in total.
    pub fn time(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.alpha + bytes / self.beta
    }

    /// Returns the seconds of an algorithm on a buffer of `bytes` bytes: 2(N−1)α + 2(N−1)/N · D/β
    /// for a ring all-reduce.
    pub fn collective(&self, algorithm: &Algorithm, ranks: usize, bytes: f64) -> f64 {
        let (messages, share) = cost_counts(algorithm, ranks);
        self.time(messages, share * bytes)
    }

    /// Fits the link to measured times of `algorithm`, by least squares of relative errors.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the points cannot separate latency from bandwidth.
    pub fn fit(algorithm: &Algorithm, ranks: usize, points: &[Measurement]) -> Result<Self> {
        let (messages, share) = cost_counts(algorithm, ranks);
        let mut sums = [0.0; 5];
        for &Measurement { bytes, seconds } in points {
            // Divided by the measured time, each error is relative. Otherwise the largest buffers
            // would decide the latency, too.
            let (x, y) = (messages / seconds, share * bytes / seconds);
            let terms = [x * x, x * y, y * y, x, y];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        let [xx, xy, yy, x, y] = sums;
        let determinant = xx * yy - xy * xy;
        let (alpha, slope) = ((x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant);
        // Points of nearly one size make the two equations the same.
        if determinant > 1e-9 * xx * yy && slope > 0.0 {
            // Noise can make a small latency negative.
            return Ok(Self { alpha: alpha.max(0.0), beta: 1.0 / slope });
        }
        let what = format!("{} measured times do not tell latency from bandwidth", points.len());
        Err(Error::invalid(format!("{what}: measure at least two ranks, and sizes from small to large")))
    }

    /// Returns the maximum relative error of the predicted times.
    pub fn error(&self, algorithm: &Algorithm, ranks: usize, points: &[Measurement]) -> f64 {
        let relative_error = |point: &Measurement| {
            (self.collective(algorithm, ranks, point.bytes) / point.seconds - 1.0).abs()
        };
        points.iter().map(relative_error).fold(0.0, f64::max)
    }
}

/// Returns the number of messages in sequence, and the bytes that each rank sends relative to the
/// buffer. Assumes full aggregation.
fn cost_counts(algorithm: &Algorithm, ranks: usize) -> (f64, f64) {
    let aggregation = if algorithm.aggregates { (ranks / 2).max(1) } else { 1 };
    let spec = GroupSpec { ranks, root: 0, aggregation };
    let complexity = algorithm.complexity.expect("every algorithm of the library states its costs");
    let (cost, (input, output)) = (complexity(&spec), algorithm.collective.shares(ranks, 0, 0));
    let blocks = (algorithm.chunks_per_share)(&spec) * input.max(output);
    (cost.steps as f64, cost.chunks as f64 / (ranks * blocks) as f64)
}

/// Returns the ring all-reduce, which plans assume.
pub fn ring() -> &'static Algorithm {
    find(Collective::AllReduce, "ring").expect("an algorithm of the library")
}

/// Returns the all-reduce by aggregated trees, with logarithmic latency.
pub(crate) fn tree() -> &'static Algorithm {
    find(Collective::AllReduce, "pat").expect("an algorithm of the library")
}

/// Returns the algorithm bandwidth of a user's buffer if each rank sends `beta` bytes per second: β
/// · N / (2(N−1)) for an all-reduce.
pub(crate) fn effective_bandwidth(beta: f64, ranks: usize) -> f64 {
    beta / (2.0 * remote_fraction(ranks))
}

/// Number of data ranks beyond which latency exceeds the work that hides it.
pub(crate) const MAX_USEFUL_DATA_RANKS: usize = 512;

/// Warns about many data ranks: ring latency grows with the ranks, while the work per rank shrinks.
/// `what` is what takes the time.
pub fn many_data_ranks(data: usize, what: &str) -> Option<String> {
    (data > MAX_USEFUL_DATA_RANKS).then(|| {
        let limit = MAX_USEFUL_DATA_RANKS;
        format!("{data} data ranks: beyond {limit}, {what} is seldom hidden behind computing")
    })
}
