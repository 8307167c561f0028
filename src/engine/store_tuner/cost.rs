//! Costs of the two kinds of store, as measured lately.

use std::time::Duration;
use unisono_reducers::Store;

/// The measurement of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Sample {
    /// Bytes written to windows or slots, of this rank or of peers.
    pub(super) written: usize,
    /// Bytes written to the output.
    pub(super) received: usize,
    time: Duration,
    /// True if memory of a peer was read.
    read: bool,
}

impl Sample {
    /// Adds a step that took `time`. It wrote `written` bytes for peers and `received` bytes to the
    /// output; `read` says whether it read memory of a peer.
    pub(in crate::engine) fn add(&mut self, written: usize, received: usize, read: bool, time: Duration) {
        self.written += written;
        self.received += received;
        self.read |= read;
        self.time += time;
    }

    /// Returns whether the run wrote for peers, and whether it read from peers into the output.
    pub(super) fn activity(&self) -> (bool, bool) {
        (self.written > 0, self.read && self.received > 0)
    }

    pub(super) fn ns_per(&self, bytes: usize) -> f64 {
        self.time.as_nanos() as f64 / bytes as f64
    }
}

/// Recent costs of both kinds of store, in nanoseconds per byte.
#[derive(Debug, Default)]
pub(super) struct Estimates {
    pub(super) cached: RecentCosts,
    pub(super) nontemporal: RecentCosts,
}

impl Estimates {
    pub(super) fn add(&mut self, store: Store, cost: f64) {
        let costs = if store == Store::Cached { &mut self.cached } else { &mut self.nontemporal };
        costs.add(cost);
    }

    /// Returns the costs as a hint for writers, once both are known.
    ///
    /// The upper half of the word is the cost of cached stores, the lower half that of non-temporal
    /// ones, both in picoseconds per byte.
    pub(super) fn hint(&self) -> Option<u64> {
        let picos =
            |costs: &RecentCosts| (costs.median() * PICOS_PER_NANO).clamp(1.0, f64::from(u32::MAX)) as u64;
        let known = self.cached.median().is_finite() && self.nontemporal.median().is_finite();
        known.then(|| picos(&self.cached) << 32 | picos(&self.nontemporal))
    }
}

/// Returns the costs that a hint states, in nanoseconds per byte: cached and non-temporal.
pub(super) fn costs_of_hint(hint: u64) -> [f64; 2] {
    [hint >> 32, hint & u64::from(u32::MAX)].map(|picos| picos as f64 / PICOS_PER_NANO)
}

/// The latest costs of one kind of store.
#[derive(Debug)]
pub(super) struct RecentCosts {
    samples: [f64; SAMPLES],
    next: usize,
}

impl Default for RecentCosts {
    fn default() -> Self {
        Self { samples: [f64::INFINITY; SAMPLES], next: 0 }
    }
}

impl RecentCosts {
    pub(super) fn add(&mut self, cost: f64) {
        self.samples[self.next] = cost;
        self.next = (self.next + 1) % SAMPLES;
    }

    /// Returns the least cost, once [`SAMPLES`] are known.
    pub(super) fn min(&self) -> Option<f64> {
        let known = self.samples.iter().all(|cost| cost.is_finite());
        known.then(|| self.samples.iter().copied().fold(f64::INFINITY, f64::min))
    }

    /// Returns the median, which ignores one outlier in either direction. Infinite until most are
    /// known.
    ///
    /// An interruption makes a run longer. A run may also be far too short, because its data
    /// happened to be in a near cache.
    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.samples;
        sorted.sort_by(f64::total_cmp);
        sorted[SAMPLES / 2]
    }
}

/// Number of costs kept; they span a few milliseconds.
pub(super) const SAMPLES: usize = 3;
const PICOS_PER_NANO: f64 = 1000.0;
