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
    /// Whether there is a choice for slices of this length in this instance, and whether it is made for a trial. Instances
    /// come back to a place after a `lap`: so long one goes through the cache before it is timed, as what was
    /// stored past it has to come back from memory first.
    pub(super) fn trial(instance: u64, slice_bytes: usize, lap: u64) -> Choice {
        let turn = match instance {
            0..PERIOD => (instance + FIRST_PERIOD - COLD) % FIRST_PERIOD,
            _ => instance % PERIOD,
        };
        match turn.checked_sub(lap.min(LAP_MAX)) {
            Some(turn) if slice_bytes >= SLICE_BYTES_MIN => Self::trial_in_turn(turn),
            _ => Choice::Made(Store::Cached),
        }
    }

    /// Each way is tried once, in the first two turns. Of as many posts in long cells as there are cells these mostly come back to
    /// the same two, which were then written the same way before: they need no lap.
    pub(super) fn trial_in_turn(turn: u64) -> Choice {
        match turn {
            0 => Choice::Trial(Store::Cached),
            1 => Choice::Trial(Store::Stream),
            _ => Choice::Free,
        }
    }

    /// The cheaper way for a rank that writes and reads.
    pub(super) fn cheaper(&self) -> Store {
        cheaper(self.both.through.usual(), self.both.past.usual())
    }

    /// The cheaper way for a rank that only writes, where others have these hints.
    pub(super) fn cheaper_for(&self, hints: impl Iterator<Item = u64>) -> Store {
        let felt = hints.filter(|&hint| hint != 0).map(|hint| [hint >> 32, hint & u64::from(u32::MAX)]);
        let most = felt.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])]);
        let Some(reading) = most.map(|picos| picos.map(|picos| picos as f64 / PICOS_PER_NANO)) else {
            return Store::Cached;
        };
        cheaper(self.written.through.usual() + reading[0], self.written.past.usual() + reading[1])
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
        let picos = |costs: &Costs| (costs.usual() * PICOS_PER_NANO).clamp(1.0, f64::from(u32::MAX)) as u64;
        let known = self.through.usual().is_finite() && self.past.usual().is_finite();
        known.then(|| picos(&self.through) << 32 | picos(&self.past))
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self { kept: [f64::INFINITY; KEPT], turn: 0 }
    }
}

impl Costs {
    /// The one in the middle: an interruption makes a trial longer, and now and then one is far too short, its data being where nobody
    /// can count on it. Infinite until most have been made.
    fn usual(&self) -> f64 {
        let mut sorted = self.kept;
        sorted.sort_by(f64::total_cmp);
        sorted[KEPT / 2]
    }
}

/// Trials kept: those of some milliseconds.
const KEPT: usize = 3;
/// Instances from one pair of trials to the next; and of the first pairs.
const PERIOD: u64 = 256;
const FIRST_PERIOD: u64 = PERIOD / 4;
/// The first instances touch most pages for the first time, and are timed by nobody.
const COLD: u64 = 8;
/// A lap that is longer is not waited for.
const LAP_MAX: u64 = 32;
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
        assert_eq!(staging.cheaper(), Store::Cached, "once is not enough");
        try_both(&mut staging, 300, 100);
        assert_eq!(staging.cheaper(), Store::Stream);
        (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
        assert_eq!(staging.cheaper(), Store::Cached);
    }

    #[test]
    fn one_trial_changes_nothing_however_slow_or_fast() {
        for (through, past) in [(9000, 100), (50, 1)] {
            let mut staging = Staging::default();
            (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
            try_both(&mut staging, through, past);
            assert_eq!(staging.cheaper(), Store::Cached);
        }
    }

    #[test]
    fn who_only_writes_goes_by_what_readers_felt() {
        let (mut root, mut near, mut far) = (Staging::default(), Staging::default(), Staging::default());
        let twice = |staging: &mut Staging, bytes, costs| {
            try_one(staging, bytes, costs);
            try_one(staging, bytes, costs)
        };
        assert_eq!(twice(&mut root, (1000, 0), [50, 100]), None);
        let near = twice(&mut near, (0, 1000), [40, 90]).unwrap();
        let far = twice(&mut far, (0, 1000), [250, 100]).unwrap();
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
        let of = |instance, lap| Staging::trial(PERIOD + instance, SLICE_BYTES_MIN, lap);
        let early = [2, COLD + 2, FIRST_PERIOD + COLD + 2].map(|at| Staging::trial(at, SLICE_BYTES_MIN, 2));
        assert_eq!(early, [Choice::Free, Choice::Trial(Store::Cached), Choice::Trial(Store::Cached)]);
        assert_eq!([0, 1].map(|instance| of(instance, 2)), [Choice::Made(Store::Cached); 2]);
        assert_eq!([of(2, 2), of(3, 2)], [Choice::Trial(Store::Cached), Choice::Trial(Store::Stream)]);
        assert_eq!([of(4, 2), of(LAP_MAX + 2, PERIOD)], [Choice::Free; 2]);
        assert_eq!(Staging::trial(2, SLICE_BYTES_MIN - 1, 2), Choice::Made(Store::Cached));
    }
}
