//! Decides how a rank writes memory that its peers read: with cached store instructions, or with
//! non-temporal ones, which bypass the cache.
//!
//! Cached stores are faster if writer and reader share a cache, and slower than memory if they do
//! not. The scheduler may move ranks at any time, so the costs are measured again and again:
//!
//! - Every [`EXPLORE_PERIOD`] runs, both stores are timed for a few runs. All ranks count runs
//!   alike, so all use the same store in these runs.
//! - In between, the cheaper store is used. Every [`PROBE_PERIOD`]th run is timed. A rank that
//!   writes and reads leaves cached stores as soon as they cost more.
//! - A rank that only writes (the root of a broadcast) hardly measures the difference. Ranks that
//!   only read publish their costs as a hint for it.

mod cost;
mod table;
#[cfg(test)]
mod tests;

pub(super) use cost::Sample;
pub(super) use table::{EAGER_K16, OpClass, TunerTable};

use cost::{Estimates, RecentCosts, costs_of_hint};
use unisono_reducers::Store;

/// The measured costs of one class of operations.
#[derive(Debug, Default)]
pub(super) struct StoreTuner {
    /// For each channel, the number of runs so far.
    runs: Vec<u64>,
    /// Costs in runs in which this rank wrote and read.
    read_write: Estimates,
    /// Costs of cached stores since the last exploration.
    probes: RecentCosts,
    /// Costs in runs in which this rank only wrote.
    write_only: Estimates,
    /// Costs in runs in which this rank only read.
    read_only: Estimates,
}

impl StoreTuner {
    /// Returns whether slices of this size are long enough for the store to matter.
    pub(super) fn applies_to(slice_bytes: usize) -> bool {
        slice_bytes >= SLICE_BYTES_MIN
    }

    /// Returns the decision for the next run of a channel, whose memory is used again after
    /// `period` runs.
    pub(super) fn next_decision(&mut self, channel: usize, period: u64) -> Decision {
        self.runs.resize(self.runs.len().max(channel + 1), 0);
        self.runs[channel] += 1;
        Self::decision(self.runs[channel] - 1, period)
    }

    /// Returns the decision for a run.
    ///
    /// Before an exploration, one period of runs uses cached stores without timing, because memory
    /// that was written past the cache first has to return to the cache. Operations of other
    /// classes may still have stored there, so an exploration can mislead until the next one.
    fn decision(run: u64, period: u64) -> Decision {
        let Some(turn) = run.checked_sub(WARMUP_RUNS) else { return Decision::Fixed(Store::Cached) };
        let waited = if turn < EXPLORE_PERIOD { FIRST_RING_PERIOD_MAX } else { RING_PERIOD_MAX };
        match (turn % EXPLORE_PERIOD).checked_sub(period.min(waited)) {
            None => Decision::Fixed(Store::Cached),
            Some(0..EXPLORE_RUNS) => Decision::Explore(Store::Cached),
            Some(turn) if turn < 2 * EXPLORE_RUNS => Decision::Explore(Store::Stream),
            Some(turn) if turn % PROBE_PERIOD == 0 => Decision::Probe,
            Some(_) => Decision::Exploit,
        }
    }

    /// Returns the decision for 16 KiB slots: the first two publications of each cycle explore.
    ///
    /// As many publications as there are slots mostly return to the same two slots, which were
    /// written the same way before. So no period has to pass before an exploration.
    pub(super) fn explore_in_turn(turn: u64) -> Decision {
        match turn {
            0 => Decision::Explore(Store::Cached),
            1 => Decision::Explore(Store::Stream),
            _ => Decision::Exploit,
        }
    }

    /// Returns the cheaper store for a rank that writes and reads.
    pub(super) fn best_store(&self, hysteresis: Hysteresis) -> Store {
        let explored = self.read_write.cached.median();
        let changed = self.probes.min().filter(|&now| now > CHANGE_FACTOR * hysteresis.0 * explored);
        hysteresis.best_store(changed.unwrap_or(explored), self.read_write.nontemporal.median())
    }

    /// Returns the cheaper store for a rank that only writes, from the hints of its readers. Zero
    /// is no hint.
    pub(super) fn best_store_for_readers(
        &self,
        hints: impl Iterator<Item = u64>,
        hysteresis: Hysteresis,
    ) -> Store {
        let costs = hints.filter(|&hint| hint != 0).map(costs_of_hint);
        let slowest = costs.reduce(|cost, next| [cost[0].max(next[0]), cost[1].max(next[1])]);
        let Some([cached, nontemporal]) = slowest else {
            return Store::Cached;
        };
        let writing = &self.write_only;
        hysteresis.best_store(writing.cached.median() + cached, writing.nontemporal.median() + nontemporal)
    }

    /// Records a timed run. Returns a hint for writers if this rank has one.
    pub(super) fn record(&mut self, timed: Timed, store: Store, sample: Sample) -> Option<u64> {
        match timed {
            Timed::No => None,
            Timed::Own => {
                self.probe(store, sample);
                None
            }
            Timed::All => self.learn(store, sample),
        }
    }

    /// Records a run in which all ranks used the same store. Returns a hint for writers if this
    /// rank has one.
    fn learn(&mut self, store: Store, sample: Sample) -> Option<u64> {
        match sample.activity() {
            (true, true) => {
                self.read_write.add(store, sample.ns_per(sample.received));
                self.probes = RecentCosts::default();
            }
            (true, false) => self.write_only.add(store, sample.ns_per(sample.written)),
            (false, true) => {
                self.read_only.add(store, sample.ns_per(sample.received));
                return self.read_only.hint();
            }
            (false, false) => {}
        }
        None
    }

    /// Records a run in which every rank chose its own store.
    ///
    /// The choice of the peers is not known, so the cost is used only if they most likely chose the
    /// same.
    fn probe(&mut self, store: Store, sample: Sample) {
        if store == Store::Cached && sample.activity() == (true, true) {
            self.probes.add(sample.ns_per(sample.received));
        }
    }
}

/// The way to find the store of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Use this store, untimed.
    Fixed(Store),
    /// Use this store, as all ranks do, and time the run.
    Explore(Store),
    /// Use the cheaper store and time the run.
    Probe,
    /// Use the cheaper store.
    Exploit,
}

/// The timing of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Timed {
    #[default]
    No,
    /// The run is timed; every rank chose its own store.
    Own,
    /// The run is timed; all ranks use the same store.
    All,
}

/// The factor by which cached stores must be more expensive before they are left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hysteresis(f64);

impl Hysteresis {
    /// The factor for ranks with a core each. Memory that is touched for the first time, or has
    /// left a shared cache, makes cached stores a little more expensive for a moment.
    pub(super) const DEDICATED_CORES: Self = Self(1.4);
    /// The factor for ranks that share cores. They wrote part of what they read on the same core,
    /// so the two costs differ less.
    pub(super) const OVERSUBSCRIBED: Self = Self(1.0);

    fn best_store(self, cached: f64, nontemporal: f64) -> Store {
        if nontemporal * self.0 < cached { Store::Stream } else { Store::Cached }
    }
}

/// Runs from one exploration to the next.
const EXPLORE_PERIOD: u64 = 512;
/// Timed runs of each store in an exploration.
const EXPLORE_RUNS: u64 = cost::SAMPLES as u64;
/// Runs from one probe to the next.
const PROBE_PERIOD: u64 = 8;
/// A probe changes the decision if it costs more than the exploration by this factor times the
/// hysteresis.
const CHANGE_FACTOR: f64 = 1.4;
/// First runs of a class, which are untimed because they touch most pages for the first time.
const WARMUP_RUNS: u64 = 8;
/// Longest wait for a period before an exploration.
const RING_PERIOD_MAX: u64 = 32;
/// The same before the first exploration, in which pages are touched for the first time.
const FIRST_RING_PERIOD_MAX: u64 = 64;
/// Smallest slice that is tuned. Less stays in the nearest caches, or costs more in
/// synchronization.
const SLICE_BYTES_MIN: usize = 4 << 10;
