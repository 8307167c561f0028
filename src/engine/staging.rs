//! How data gets into windows: through the cache, or past it.
//!
//! What one core has written and another reads travels at 25 GB/s where both share a cache, and at 4 where they
//! do not; from memory it comes at 10 either way. Where ranks run may change while they run. So both ways
//! are tried now and then, in instances that all ranks count alike, and the cheaper one is used in between.
//! Who only writes, as a broadcast's root, feels little of the difference: those who only read tell it what they felt.

use std::time::Duration;
use unisono_cuda::Store;

/// What the two ways cost lately.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// Where this rank wrote and read.
    both: Ways,
    written: Ways,
    read: Ways,
}

/// Nanoseconds per byte of the last trials of both ways.
#[derive(Debug, Default)]
struct Ways {
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
    /// Bytes written to this rank's window, and to its output.
    written: usize,
    gotten: usize,
    time: Duration,
    /// Whether a peer's window was read.
    read: bool,
}

impl Trial {
    /// Another step took `time`: it wrote so many bytes to the window, or to the output; it read a peer's window, or
    /// did not.
    pub(super) fn add(&mut self, written: usize, gotten: usize, read: bool, time: Duration) {
        self.written += written;
        self.gotten += gotten;
        self.read |= read;
        self.time += time;
    }

    fn per(&self, bytes: usize) -> f64 {
        self.time.as_nanos() as f64 / bytes as f64
    }
}

impl Staging {
    /// Whether there is a choice for slices (or cells) of this length in this instance, and whether it is made for a trial.
    pub(super) fn trial(instance: u64, slice_bytes: usize) -> Choice {
        match (slice_bytes >= SLICE_BYTES_MIN, instance % PERIOD) {
            (false, _) => Choice::Made(Store::Cached),
            (true, 0) => Choice::Trial(Store::Cached),
            (true, 1) => Choice::Trial(Store::Stream),
            (true, _) => Choice::Free,
        }
    }

    /// The cheaper way for a rank that writes and reads.
    pub(super) fn cheaper(&self) -> Store {
        cheaper(self.both.through.least(), self.both.past.least())
    }

    /// The cheaper way for a rank that only writes, where others have these hints.
    pub(super) fn cheaper_for(&self, hints: impl Iterator<Item = u64>) -> Store {
        let felt = hints.filter(|&hint| hint != 0).map(|hint| [hint >> 32, hint & u64::from(u32::MAX)]);
        let most = felt.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])]);
        let Some(reading) = most.map(|picos| picos.map(|picos| picos as f64 / PICOS_PER_NANO)) else {
            return Store::Cached;
        };
        cheaper(self.written.through.least() + reading[0], self.written.past.least() + reading[1])
    }

    /// A trial is over; the hint for others, if this rank has one.
    pub(super) fn learn(&mut self, store: Store, trial: Trial) -> Option<u64> {
        match (trial.written > 0, trial.read && trial.gotten > 0) {
            (true, true) => self.both.keep(store, trial.per(trial.gotten)),
            (true, false) => self.written.keep(store, trial.per(trial.written)),
            (false, true) => {
                self.read.keep(store, trial.per(trial.gotten));
                return self.read.hint();
            }
            (false, false) => {}
        }
        None
    }
}

/// How an instance writes to windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// There is none.
    Made(Store),
    /// To learn what it costs.
    Trial(Store),
    /// As is cheaper.
    Free,
}

fn cheaper(through: f64, past: f64) -> Store {
    if past < through { Store::Stream } else { Store::Cached }
}

impl Ways {
    fn keep(&mut self, store: Store, cost: f64) {
        let costs = if store == Store::Cached { &mut self.through } else { &mut self.past };
        costs.kept[costs.turn] = cost;
        costs.turn = (costs.turn + 1) % KEPT;
    }

    /// Picoseconds per byte through the cache in the upper half, past it in the lower.
    fn hint(&self) -> Option<u64> {
        let picos = |costs: &Costs| (costs.least() * PICOS_PER_NANO).clamp(1.0, f64::from(u32::MAX)) as u64;
        let known = self.through.least().is_finite() && self.past.least().is_finite();
        known.then(|| picos(&self.through) << 32 | picos(&self.past))
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self { kept: [f64::INFINITY; KEPT], turn: 0 }
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
const PICOS_PER_NANO: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that wrote and read: nanoseconds for 1000 bytes of output.
    fn try_both(staging: &mut Staging, through: u64, past: u64) {
        for (store, nanos) in [(Store::Cached, through), (Store::Stream, past)] {
            let mut trial = Trial::default();
            trial.add(500, 0, false, Duration::ZERO);
            trial.add(0, 1000, true, Duration::from_nanos(nanos));
            assert_eq!(staging.learn(store, trial), None);
        }
    }

    fn try_one(staging: &mut Staging, (written, gotten): (usize, usize), costs: [u64; 2]) -> Option<u64> {
        let hints = [(Store::Cached, costs[0]), (Store::Stream, costs[1])].map(|(store, nanos)| {
            let mut trial = Trial::default();
            trial.add(written, gotten, gotten > 0, Duration::from_nanos(nanos));
            staging.learn(store, trial)
        });
        hints[1]
    }

    #[test]
    fn the_cheaper_way_is_taken_and_a_change_is_noticed() {
        let mut staging = Staging::default();
        assert_eq!(staging.cheaper(), Store::Cached);
        try_both(&mut staging, 300, 100);
        assert_eq!(staging.cheaper(), Store::Stream);
        (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
        assert_eq!(staging.cheaper(), Store::Cached);
    }

    #[test]
    fn one_slow_trial_changes_nothing() {
        let mut staging = Staging::default();
        (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
        try_both(&mut staging, 9000, 100);
        assert_eq!(staging.cheaper(), Store::Cached);
    }

    #[test]
    fn who_only_writes_goes_by_what_readers_felt() {
        let (mut root, mut near, mut far) = (Staging::default(), Staging::default(), Staging::default());
        assert_eq!(try_one(&mut root, (1000, 0), [50, 100]), None);
        let near = try_one(&mut near, (0, 1000), [40, 90]).unwrap();
        let far = try_one(&mut far, (0, 1000), [250, 100]).unwrap();
        assert_eq!(root.cheaper_for([0, near].into_iter()), Store::Cached);
        assert_eq!(root.cheaper_for([near, 0, far].into_iter()), Store::Stream);
        assert_eq!(root.cheaper_for([0, 0].into_iter()), Store::Cached, "nobody knows");
        assert_eq!(root.cheaper(), Store::Cached, "other operations learn nothing from it");
    }

    #[test]
    fn half_of_a_pair_of_trials_is_no_hint() {
        let mut trial = Trial::default();
        trial.add(0, 1000, true, Duration::from_nanos(10));
        assert_eq!(Staging::default().learn(Store::Cached, trial), None);
    }

    #[test]
    fn all_ranks_try_in_the_same_instances_and_short_slices_never() {
        assert_eq!(Staging::trial(PERIOD, SLICE_BYTES_MIN), Choice::Trial(Store::Cached));
        assert_eq!(Staging::trial(PERIOD + 1, SLICE_BYTES_MIN), Choice::Trial(Store::Stream));
        assert_eq!(Staging::trial(PERIOD + 2, SLICE_BYTES_MIN), Choice::Free);
        assert_eq!(Staging::trial(PERIOD + 1, SLICE_BYTES_MIN - 1), Choice::Made(Store::Cached));
    }
}
