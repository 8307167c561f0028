//! How long communication takes: α for every message that must follow another, and a share of β for every byte.
//!
//! Sources: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994; Thakur et al., "Optimization of collective
//! communication operations in MPICH", 2005, for the counts of algorithms. The counts here are those that the library's algorithms
//! state and its checker holds them to.

use crate::error::{Error, Result};
use serde::Serialize;
use unisono::schedule::{Algorithm, Collective, GroupSpec, find};

/// A link: seconds of one message without bytes, and bytes in a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// α, seconds.
    pub alpha: f64,
    /// β, bytes per second.
    pub beta: f64,
}

/// How long a collective of so many bytes took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Bytes of the whole buffer.
    pub bytes: f64,
    /// Seconds.
    pub seconds: f64,
}

impl Link {
    /// Seconds for `messages` one after another that have so many `bytes` together.
    pub fn time(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.alpha + bytes / self.beta
    }

    /// Seconds for an algorithm with `bytes` in the whole buffer: 2(N−1)α + 2(N−1)/N · D/β for an all-reduce around the ring.
    pub fn collective(&self, algorithm: &Algorithm, ranks: usize, bytes: f64) -> f64 {
        let (messages, share) = cost_counts(algorithm, ranks);
        self.time(messages, share * bytes)
    }

    /// The link on which an `algorithm` among so many ranks takes as long as measured, by least squares of relative errors.
    ///
    /// # Errors
    /// [`Error::Illegal`] if the points cannot tell latency from bandwidth.
    pub fn fit(algorithm: &Algorithm, ranks: usize, points: &[Measurement]) -> Result<Self> {
        let (messages, share) = cost_counts(algorithm, ranks);
        let mut sums = [0.0; 5];
        for &Measurement { bytes, seconds } in points {
            let (x, y) = (messages / seconds, share * bytes / seconds);
            let terms = [x * x, x * y, y * y, x, y];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        let [xx, xy, yy, x, y] = sums;
        let determinant = xx * yy - xy * xy;
        let (alpha, slope) = ((x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant);
        if determinant > 1e-9 * xx * yy && slope > 0.0 {
            return Ok(Self { alpha: alpha.max(0.0), beta: 1.0 / slope });
        }
        let what = format!("{} measured times do not tell latency from bandwidth", points.len());
        Err(Error::invalid(format!("{what}: measure at least two ranks, and sizes from small to large")))
    }

    /// By what share of a measured time the prediction is wrong at most.
    pub fn error(&self, algorithm: &Algorithm, ranks: usize, points: &[Measurement]) -> f64 {
        let of = |point: &Measurement| {
            (self.collective(algorithm, ranks, point.bytes) / point.seconds - 1.0).abs()
        };
        points.iter().map(of).fold(0.0, f64::max)
    }
}

/// Messages of an algorithm that follow one another, and what each rank sends as a share of the whole buffer. Algorithms that
/// aggregate do so as far as they can.
fn cost_counts(algorithm: &Algorithm, ranks: usize) -> (f64, f64) {
    let aggregation = if algorithm.aggregates { (ranks / 2).max(1) } else { 1 };
    let spec = GroupSpec { ranks, root: 0, aggregation };
    let (cost, (input, output)) = ((algorithm.complexity)(&spec), algorithm.collective.shares(ranks, 0, 0));
    let blocks = (algorithm.chunks_per_share)(&spec) * input.max(output);
    (cost.steps as f64, cost.chunks as f64 / (ranks * blocks) as f64)
}

/// The all-reduce around the ring, which plans count with.
pub fn ring() -> &'static Algorithm {
    find(Collective::AllReduce, "ring").expect("an algorithm of the library")
}

/// The all-reduce by aggregated trees, whose latency grows with the logarithm of the ranks.
pub fn tree() -> &'static Algorithm {
    find(Collective::AllReduce, "pat").expect("an algorithm of the library")
}

/// Bytes that a user sees moved in a second when each rank sends `beta`: b · N / (2(N−1)) for an all-reduce.
pub fn effective_bandwidth(beta: f64, ranks: usize) -> f64 {
    beta / (2.0 * crate::train::remote_fraction(ranks))
}
