//! How data gets into windows: through the cache, or past it.
//!
//! What one core has written and another reads travels at 25 GB/s where both share a cache, and at 4 where they
//! do not; from memory it comes at 10 either way. Where ranks run may change while they run. So both ways
//! are tried now and then, in instances that all ranks count alike, and the cheaper one is used in between.

use std::time::Duration;
use unisono_cuda::Store;

/// What the two ways cost lately.
#[derive(Debug)]
pub(super) struct Staging {
    /// Nanoseconds per byte, of the last trials.
    through: Costs,
    past: Costs,
}

/// The last trials of one way, in turn.
#[derive(Debug)]
struct Costs {
    kept: [f64; KEPT],
    turn: usize,
}

/// What one trial took so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    /// Of output.
    bytes: usize,
    time: Duration,
    wrote: bool,
    read: bool,
}

impl Trial {
    /// Another step took `time`: it wrote to a window, or `bytes` of output; it read a window, or did not.
    pub(super) fn add(&mut self, bytes: usize, wrote: bool, read: bool, time: Duration) {
        self.bytes += bytes;
        self.wrote |= wrote;
        self.read |= read;
        self.time += time;
    }

    /// Whoever only writes, or only reads, knows half of the cost.
    fn tells(&self) -> bool {
        self.wrote && self.read && self.bytes > 0
    }
}

impl Default for Staging {
    fn default() -> Self {
        let costs = || Costs { kept: [f64::INFINITY; KEPT], turn: 0 };
        Self { through: costs(), past: costs() }
    }
}

impl Staging {
    /// The way for slices of this length in this instance, and whether it is a trial.
    pub(super) fn way(&self, instance: u64, slice_bytes: usize) -> (Store, bool) {
        match (slice_bytes >= SLICE_BYTES_MIN, instance % PERIOD) {
            (false, _) => (Store::Cached, false),
            (true, 0) => (Store::Cached, true),
            (true, 1) => (Store::Stream, true),
            (true, _) => (self.cheaper(), false),
        }
    }

    /// The trial of this instance is over.
    pub(super) fn learn(&mut self, store: Store, trial: Trial) {
        let costs = if store == Store::Cached { &mut self.through } else { &mut self.past };
        if trial.tells() {
            costs.kept[costs.turn] = trial.time.as_nanos() as f64 / trial.bytes as f64;
            costs.turn = (costs.turn + 1) % KEPT;
        }
    }

    fn cheaper(&self) -> Store {
        if self.past.least() < self.through.least() { Store::Stream } else { Store::Cached }
    }
}

impl Costs {
    /// The least: what interrupts a trial only ever makes it longer.
    fn least(&self) -> f64 {
        self.kept.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Trials kept: those of some milliseconds.
const KEPT: usize = 3;
/// Instances from one pair of trials to the next.
const PERIOD: u64 = 128;
/// Less stays in the nearest caches, or costs more in hand-overs than in copies.
const SLICE_BYTES_MIN: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn try_both(staging: &mut Staging, through: u64, past: u64) {
        for (store, nanos) in [(Store::Cached, through), (Store::Stream, past)] {
            let mut trial = Trial::default();
            trial.add(500, true, false, Duration::ZERO);
            trial.add(500, false, true, Duration::from_nanos(nanos));
            staging.learn(store, trial);
        }
    }

    #[test]
    fn the_cheaper_way_is_taken_and_a_change_is_noticed() {
        let mut staging = Staging::default();
        let way = |staging: &Staging| staging.way(5, SLICE_BYTES_MIN);
        assert_eq!(way(&staging), (Store::Cached, false));
        try_both(&mut staging, 300, 100);
        assert_eq!(way(&staging), (Store::Stream, false));
        (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
        assert_eq!(way(&staging), (Store::Cached, false));
    }

    #[test]
    fn one_slow_trial_changes_nothing() {
        let mut staging = Staging::default();
        (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
        try_both(&mut staging, 9000, 100);
        assert_eq!(staging.way(2, SLICE_BYTES_MIN), (Store::Cached, false));
    }

    #[test]
    fn who_only_writes_learns_nothing() {
        let mut staging = Staging::default();
        try_both(&mut staging, 50, 100);
        let mut trial = Trial::default();
        trial.add(1000, true, false, Duration::from_nanos(1));
        staging.learn(Store::Stream, trial);
        assert_eq!(staging.way(2, SLICE_BYTES_MIN), (Store::Cached, false));
    }

    #[test]
    fn all_ranks_try_in_the_same_instances_and_short_slices_never() {
        let staging = Staging::default();
        assert_eq!(staging.way(PERIOD, SLICE_BYTES_MIN), (Store::Cached, true));
        assert_eq!(staging.way(PERIOD + 1, SLICE_BYTES_MIN), (Store::Stream, true));
        assert_eq!(staging.way(PERIOD + 1, SLICE_BYTES_MIN - 1), (Store::Cached, false));
    }
}
