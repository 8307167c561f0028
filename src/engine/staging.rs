//! How data gets into windows: through the cache, or past it.
//!
//! What one core has written and another reads travels at 25 GB/s where both share a cache, and at 4 where they
//! do not; from memory it comes at 10 either way. Where ranks run may change while they run, ten times a second. So
//! both ways are tried now and then, in instances that all ranks count alike, and the cheaper one is used in between.
//! What the way through the cache costs there is looked at more often: where it has grown, nobody who writes and reads
//! waits for the next trial. Who only writes, as a broadcast's root, feels little of the difference: those who only read tell it what they felt.

use std::time::Duration;
use unisono_cuda::Store;

/// What the two ways cost lately.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// For each channel, instances so far.
    instances: Vec<u64>,
    /// Where this rank wrote and read.
    both: Ways,
    /// The way through the cache, where it has been used since the last trial.
    watched: Costs,
    written: Ways,
    read: Ways,
}

/// Nanoseconds per byte that both ways took lately.
#[derive(Debug, Default)]
struct Ways {
    through: Costs,
    past: Costs,
}

/// The last times of one way, in turn.
#[derive(Debug)]
struct Costs {
    kept: [f64; KEPT],
    turn: usize,
}

/// What one trial took so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    /// Bytes written to windows, this rank's or a peer's, and to its output.
    written: usize,
    gotten: usize,
    time: Duration,
    /// Whether a peer's window was read.
    read: bool,
}

impl Trial {
    /// Another step took `time`: it wrote so many bytes to a window, or to the output; it read a peer's window, or
    /// did not.
    pub(super) fn add(&mut self, written: usize, gotten: usize, read: bool, time: Duration) {
        self.written += written;
        self.gotten += gotten;
        self.read |= read;
        self.time += time;
    }

    /// Whether something was written to a window, and whether a peer's was read into the output.
    fn moved(&self) -> (bool, bool) {
        (self.written > 0, self.read && self.gotten > 0)
    }

    fn per(&self, bytes: usize) -> f64 {
        self.time.as_nanos() as f64 / bytes as f64
    }
}

impl Staging {
    /// Whether slices of this length are worth a choice.
    pub(super) fn is_for(slice_bytes: usize) -> bool {
        slice_bytes >= SLICE_BYTES_MIN
    }

    /// The choice in the next instance of a channel.
    pub(super) fn next(&mut self, channel: usize, lap: u64) -> Choice {
        self.instances.resize(self.instances.len().max(channel + 1), 0);
        self.instances[channel] += 1;
        Self::choice(self.instances[channel] - 1, lap)
    }

    /// The choice in the instance of this number, and whether it is made for a trial: some of each way. Instances come back
    /// to a place after a `lap`: so long one goes through the cache before it is timed, as what was stored past it has to
    /// come back from memory first. (What other operations stored there in between is not known; the trial may mislead then.)
    fn choice(instance: u64, lap: u64) -> Choice {
        let Some(turn) = instance.checked_sub(COLD) else { return Choice::Made(Store::Cached) };
        let waited = if turn < PERIOD { FIRST_LAP_MAX } else { LAP_MAX };
        match (turn % PERIOD).checked_sub(lap.min(waited)) {
            None => Choice::Made(Store::Cached),
            Some(0..TRIED) => Choice::Trial(Store::Cached),
            Some(turn) if turn < 2 * TRIED => Choice::Trial(Store::Stream),
            Some(turn) if turn % WATCHED == 0 => Choice::Watched,
            Some(_) => Choice::Free,
        }
    }

    /// The same for cells of four pages: each way is tried once, in the first two turns. Of as many posts as there are cells these mostly
    /// come back to the same two, which were then written the same way before: they need no lap.
    pub(super) fn trial_in_turn(turn: u64) -> Choice {
        match turn {
            0 => Choice::Trial(Store::Cached),
            1 => Choice::Trial(Store::Stream),
            _ => Choice::Free,
        }
    }

    /// The cheaper way for a rank that writes and reads.
    pub(super) fn cheaper(&self, margin: Margin) -> Store {
        let tried = self.both.through.usual();
        let changed = self.watched.least().filter(|&now| now > CHANGED * margin.0 * tried);
        margin.cheaper(changed.unwrap_or(tried), self.both.past.usual())
    }

    /// The cheaper way for a rank that only writes, where others have these hints.
    pub(super) fn cheaper_for(&self, hints: impl Iterator<Item = u64>, margin: Margin) -> Store {
        let felt = hints.filter(|&hint| hint != 0).map(|hint| [hint >> 32, hint & u64::from(u32::MAX)]);
        let most = felt.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])]);
        let Some(reading) = most.map(|picos| picos.map(|picos| picos as f64 / PICOS_PER_NANO)) else {
            return Store::Cached;
        };
        margin.cheaper(self.written.through.usual() + reading[0], self.written.past.usual() + reading[1])
    }

    /// An instance that was timed is over; the hint for others, if this rank has one.
    pub(super) fn end(&mut self, timed: Timed, store: Store, trial: Trial) -> Option<u64> {
        match timed {
            Timed::No => None,
            Timed::Own => {
                self.watch(store, trial);
                None
            }
            Timed::All => self.learn(store, trial),
        }
    }

    /// An instance in which all ranks wrote in the same way is over; the hint for others, if this rank has one.
    fn learn(&mut self, store: Store, trial: Trial) -> Option<u64> {
        match trial.moved() {
            (true, true) => {
                self.both.keep(store, trial.per(trial.gotten));
                self.watched = Costs::default();
            }
            (true, false) => self.written.keep(store, trial.per(trial.written)),
            (false, true) => {
                self.read.keep(store, trial.per(trial.gotten));
                return self.read.hint();
            }
            (false, false) => {}
        }
        None
    }

    /// An instance in which every rank wrote as it likes is over. How others did is not known, so this tells something only to
    /// who did what they most likely did.
    fn watch(&mut self, store: Store, trial: Trial) {
        if store == Store::Cached && trial.moved() == (true, true) {
            self.watched.keep(trial.per(trial.gotten));
        }
    }
}

/// How an instance writes to windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// There is none.
    Made(Store),
    /// To learn what it costs.
    Trial(Store),
    /// As is cheaper, and to see whether it still is.
    Watched,
    /// As is cheaper.
    Free,
}

/// Whether the steps of an instance are timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Timed {
    #[default]
    No,
    /// This rank has chosen how it writes, and others as they like.
    Own,
    /// All ranks write in the same way.
    All,
}

/// So much dearer the way through the cache must be to be left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin(f64);

impl Margin {
    /// Of ranks with a core each: where cores share a cache, memory that is touched for the first time, or has left the
    /// cache meanwhile, may make the way through it a little dearer for a moment.
    pub(super) const ROOMY: Self = Self(1.4);
    /// Of ranks that share cores: part of what they read was written on the same core, so that the ways differ less.
    pub(super) const CROWDED: Self = Self(1.0);

    fn cheaper(self, through: f64, past: f64) -> Store {
        if past * self.0 < through { Store::Stream } else { Store::Cached }
    }
}

impl Ways {
    fn keep(&mut self, store: Store, cost: f64) {
        let costs = if store == Store::Cached { &mut self.through } else { &mut self.past };
        costs.keep(cost);
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
    /// What it took at least, once so many are kept.
    fn least(&self) -> Option<f64> {
        let known = self.kept.iter().all(|cost| cost.is_finite());
        known.then(|| self.kept.iter().copied().fold(f64::INFINITY, f64::min))
    }

    fn keep(&mut self, cost: f64) {
        self.kept[self.turn] = cost;
        self.turn = (self.turn + 1) % KEPT;
    }

    /// The one in the middle: an interruption makes a trial longer, and now and then one is far too short, its data being where nobody
    /// can count on it. Infinite until most have been made.
    fn usual(&self) -> f64 {
        let mut sorted = self.kept;
        sorted.sort_by(f64::total_cmp);
        sorted[KEPT / 2]
    }
}

/// Times kept: those of some milliseconds.
const KEPT: usize = 3;
/// Instances from one trial of both ways to the next.
const PERIOD: u64 = 512;
/// Of each way in a trial.
const TRIED: u64 = KEPT as u64;
/// Every so many instances in between are timed.
const WATCHED: u64 = 8;
/// So many times the cost at the last trial, and the margin, is another cost.
const CHANGED: f64 = 1.4;
/// The first instances touch most pages for the first time, and are timed by nobody.
const COLD: u64 = 8;
/// A lap that is longer is not waited for,
const LAP_MAX: u64 = 32;
/// except the first, in which pages are touched for the first time.
const FIRST_LAP_MAX: u64 = 64;
/// Less stays in the nearest caches, or costs more in hand-overs than in copies.
const SLICE_BYTES_MIN: usize = 4 << 10;
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
        assert_eq!(staging.cheaper(Margin::ROOMY), Store::Cached);
        try_both(&mut staging, 300, 100);
        assert_eq!(staging.cheaper(Margin::ROOMY), Store::Cached, "once is not enough");
        try_both(&mut staging, 300, 100);
        assert_eq!(staging.cheaper(Margin::ROOMY), Store::Stream);
        (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
        assert_eq!(staging.cheaper(Margin::ROOMY), Store::Cached);
    }

    #[test]
    fn what_differs_little_counts_where_ranks_share_cores() {
        let mut staging = Staging::default();
        (0..KEPT).for_each(|_| try_both(&mut staging, 120, 100));
        assert_eq!(
            [Margin::ROOMY, Margin::CROWDED].map(|margin| staging.cheaper(margin)),
            [Store::Cached, Store::Stream]
        );
        (0..KEPT).for_each(|_| try_both(&mut staging, 95, 100));
        assert_eq!(staging.cheaper(Margin::CROWDED), Store::Cached);
    }

    #[test]
    fn one_trial_changes_nothing_however_slow_or_fast() {
        for (through, past) in [(9000, 100), (50, 1)] {
            let mut staging = Staging::default();
            (0..KEPT).for_each(|_| try_both(&mut staging, 50, 100));
            try_both(&mut staging, through, past);
            assert_eq!(staging.cheaper(Margin::ROOMY), Store::Cached);
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
        assert_eq!(root.cheaper_for([0, near].into_iter(), Margin::ROOMY), Store::Cached);
        assert_eq!(root.cheaper_for([near, 0, far].into_iter(), Margin::ROOMY), Store::Stream);
        assert_eq!(root.cheaper_for([0, 0].into_iter(), Margin::ROOMY), Store::Cached, "nobody knows");
        assert_eq!(root.cheaper(Margin::ROOMY), Store::Cached, "other operations learn nothing from it");
    }

    #[test]
    fn a_way_that_becomes_dear_while_it_is_used_is_left_before_the_next_trial() {
        let mut staging = Staging::default();
        (0..2).for_each(|_| try_both(&mut staging, 50, 100));
        let mut use_it = |nanos, (written, gotten)| {
            let mut seen = Trial::default();
            seen.add(written, gotten, gotten > 0, Duration::from_nanos(nanos));
            staging.watch(Store::Cached, seen);
            staging.cheaper(Margin::ROOMY)
        };
        assert_eq!(use_it(250, (500, 1000)), Store::Cached, "it may be an interruption");
        assert_eq!(use_it(250, (500, 1000)), Store::Cached, "or two");
        assert_eq!(use_it(9000, (0, 1000)), Store::Cached, "others may have written in another way");
        assert_eq!(use_it(250, (500, 1000)), Store::Stream);
    }

    #[test]
    fn half_of_a_pair_of_trials_is_no_hint() {
        let mut trial = Trial::default();
        trial.add(0, 1000, true, Duration::from_nanos(10));
        assert_eq!(Staging::default().learn(Store::Cached, trial), None);
    }

    #[test]
    fn all_ranks_try_in_the_same_instances() {
        let turns = |lap| (0..COLD + PERIOD + 40).map(move |instance| Staging::choice(instance, lap));
        let of = |lap, wanted: Choice| {
            let found = turns(lap).zip(0..).filter(move |&(choice, _)| choice == wanted);
            found.map(|(_, instance)| instance).collect::<Vec<u64>>()
        };
        let (first, second) = (COLD + 2, COLD + PERIOD + 2);
        assert_eq!(
            of(2, Choice::Trial(Store::Cached)),
            [first, first + 1, first + 2, second, second + 1, second + 2]
        );
        assert_eq!(of(2, Choice::Trial(Store::Stream))[..3], [first + 3, first + 4, first + 5]);
        assert_eq!(
            of(2, Choice::Made(Store::Cached)),
            [(0..first).collect::<Vec<_>>(), vec![second - 2, second - 1]].concat()
        );
        assert_eq!(of(2, Choice::Watched)[..2], [first + 8, first + 16]);
        let waited = of(PERIOD, Choice::Trial(Store::Cached));
        assert_eq!([waited[0], waited[3]], [COLD + FIRST_LAP_MAX, COLD + PERIOD + LAP_MAX]);
        assert!(!Staging::is_for(SLICE_BYTES_MIN - 1) && Staging::is_for(SLICE_BYTES_MIN));
    }
}
