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
pub(super) struct StoreTuner {
    /// For each channel, instances so far.
    runs: Vec<u64>,
    /// Where this rank wrote and read.
    read_write: Estimates,
    /// The way through the cache, where it has been used since the last trial.
    probes: RecentCosts,
    write_only: Estimates,
    read_only: Estimates,
}

/// Nanoseconds per byte that both ways took lately.
#[derive(Debug, Default)]
struct Estimates {
    cached: RecentCosts,
    nontemporal: RecentCosts,
}

/// The last times of one way, in turn.
#[derive(Debug)]
struct RecentCosts {
    samples: [f64; SAMPLES],
    next: usize,
}

/// What one trial took so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Bytes written to windows, this rank's or a peer's, and to its output.
    written: usize,
    received: usize,
    time: Duration,
    /// Whether a peer's window was read.
    read: bool,
}

impl Sample {
    /// Another step took `time`: it wrote so many bytes to a window, or to the output; it read a peer's window, or
    /// did not.
    pub(super) fn add(&mut self, written: usize, received: usize, read: bool, time: Duration) {
        self.written += written;
        self.received += received;
        self.read |= read;
        self.time += time;
    }

    /// Whether something was written to a window, and whether a peer's was read into the output.
    fn activity(&self) -> (bool, bool) {
        (self.written > 0, self.read && self.received > 0)
    }

    fn ns_per(&self, bytes: usize) -> f64 {
        self.time.as_nanos() as f64 / bytes as f64
    }
}

impl StoreTuner {
    /// Whether slices of this length are worth a choice.
    pub(super) fn applies_to(slice_bytes: usize) -> bool {
        slice_bytes >= SLICE_BYTES_MIN
    }

    /// The choice in the next instance of a channel.
    pub(super) fn next_decision(&mut self, channel: usize, lap: u64) -> Decision {
        self.runs.resize(self.runs.len().max(channel + 1), 0);
        self.runs[channel] += 1;
        Self::decision(self.runs[channel] - 1, lap)
    }

    /// The choice in the instance of this number, and whether it is made for a trial: some of each way. Instances come back
    /// to a place after a `lap`: so long one goes through the cache before it is timed, as what was stored past it has to
    /// come back from memory first. (What other operations stored there in between is not known; the trial may mislead then.)
    fn decision(instance: u64, lap: u64) -> Decision {
        let Some(turn) = instance.checked_sub(WARMUP_RUNS) else { return Decision::Fixed(Store::Cached) };
        let waited = if turn < EXPLORE_PERIOD { FIRST_RING_PERIOD_MAX } else { RING_PERIOD_MAX };
        match (turn % EXPLORE_PERIOD).checked_sub(lap.min(waited)) {
            None => Decision::Fixed(Store::Cached),
            Some(0..EXPLORE_RUNS) => Decision::Explore(Store::Cached),
            Some(turn) if turn < 2 * EXPLORE_RUNS => Decision::Explore(Store::Stream),
            Some(turn) if turn % PROBE_PERIOD == 0 => Decision::Probe,
            Some(_) => Decision::Exploit,
        }
    }

    /// The same for slots of four pages: each way is tried once, in the first two turns. Of as many posts as there are slots these mostly
    /// come back to the same two, which were then written the same way before: they need no lap.
    pub(super) fn explore_in_turn(turn: u64) -> Decision {
        match turn {
            0 => Decision::Explore(Store::Cached),
            1 => Decision::Explore(Store::Stream),
            _ => Decision::Exploit,
        }
    }

    /// The cheaper way for a rank that writes and reads.
    pub(super) fn best_store(&self, margin: Hysteresis) -> Store {
        let tried = self.read_write.cached.median();
        let changed = self.probes.min().filter(|&now| now > CHANGE_FACTOR * margin.0 * tried);
        margin.best_store(changed.unwrap_or(tried), self.read_write.nontemporal.median())
    }

    /// The cheaper way for a rank that only writes, where others have these hints.
    pub(super) fn best_store_for_readers(
        &self,
        hints: impl Iterator<Item = u64>,
        margin: Hysteresis,
    ) -> Store {
        let felt = hints.filter(|&hint| hint != 0).map(|hint| [hint >> 32, hint & u64::from(u32::MAX)]);
        let most = felt.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])]);
        let Some(reading) = most.map(|picos| picos.map(|picos| picos as f64 / PICOS_PER_NANO)) else {
            return Store::Cached;
        };
        margin.best_store(
            self.write_only.cached.median() + reading[0],
            self.write_only.nontemporal.median() + reading[1],
        )
    }

    /// An instance that was timed is over; the hint for others, if this rank has one.
    pub(super) fn record(&mut self, timed: Timed, store: Store, trial: Sample) -> Option<u64> {
        match timed {
            Timed::No => None,
            Timed::Own => {
                self.probe(store, trial);
                None
            }
            Timed::All => self.learn(store, trial),
        }
    }

    /// An instance in which all ranks wrote in the same way is over; the hint for others, if this rank has one.
    fn learn(&mut self, store: Store, trial: Sample) -> Option<u64> {
        match trial.activity() {
            (true, true) => {
                self.read_write.add(store, trial.ns_per(trial.received));
                self.probes = RecentCosts::default();
            }
            (true, false) => self.write_only.add(store, trial.ns_per(trial.written)),
            (false, true) => {
                self.read_only.add(store, trial.ns_per(trial.received));
                return self.read_only.advisory();
            }
            (false, false) => {}
        }
        None
    }

    /// An instance in which every rank wrote as it likes is over. How others did is not known, so this tells something only to
    /// who did what they most likely did.
    fn probe(&mut self, store: Store, trial: Sample) {
        if store == Store::Cached && trial.activity() == (true, true) {
            self.probes.add(trial.ns_per(trial.received));
        }
    }
}

/// How an instance writes to windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// There is none.
    Fixed(Store),
    /// To learn what it costs.
    Explore(Store),
    /// As is cheaper, and to see whether it still is.
    Probe,
    /// As is cheaper.
    Exploit,
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
pub(super) struct Hysteresis(f64);

impl Hysteresis {
    /// Of ranks with a core each: where cores share a cache, memory that is touched for the first time, or has left the
    /// cache meanwhile, may make the way through it a little dearer for a moment.
    pub(super) const DEDICATED_CORES: Self = Self(1.4);
    /// Of ranks that share cores: part of what they read was written on the same core, so that the ways differ less.
    pub(super) const OVERSUBSCRIBED: Self = Self(1.0);

    fn best_store(self, through: f64, past: f64) -> Store {
        if past * self.0 < through { Store::Stream } else { Store::Cached }
    }
}

impl Estimates {
    fn add(&mut self, store: Store, cost: f64) {
        let costs = if store == Store::Cached { &mut self.cached } else { &mut self.nontemporal };
        costs.add(cost);
    }

    /// Picoseconds per byte through the cache in the upper half, past it in the lower.
    fn advisory(&self) -> Option<u64> {
        let picos =
            |costs: &RecentCosts| (costs.median() * PICOS_PER_NANO).clamp(1.0, f64::from(u32::MAX)) as u64;
        let known = self.cached.median().is_finite() && self.nontemporal.median().is_finite();
        known.then(|| picos(&self.cached) << 32 | picos(&self.nontemporal))
    }
}

impl Default for RecentCosts {
    fn default() -> Self {
        Self { samples: [f64::INFINITY; SAMPLES], next: 0 }
    }
}

impl RecentCosts {
    /// What it took at least, once so many are kept.
    fn min(&self) -> Option<f64> {
        let known = self.samples.iter().all(|cost| cost.is_finite());
        known.then(|| self.samples.iter().copied().fold(f64::INFINITY, f64::min))
    }

    fn add(&mut self, cost: f64) {
        self.samples[self.next] = cost;
        self.next = (self.next + 1) % SAMPLES;
    }

    /// The one in the middle: an interruption makes a trial longer, and now and then one is far too short, its data being where nobody
    /// can count on it. Infinite until most have been made.
    fn median(&self) -> f64 {
        let mut sorted = self.samples;
        sorted.sort_by(f64::total_cmp);
        sorted[SAMPLES / 2]
    }
}

/// Times kept: those of some milliseconds.
const SAMPLES: usize = 3;
/// Instances from one trial of both ways to the next.
const EXPLORE_PERIOD: u64 = 512;
/// Of each way in a trial.
const EXPLORE_RUNS: u64 = SAMPLES as u64;
/// Every so many instances in between are timed.
const PROBE_PERIOD: u64 = 8;
/// So many times the cost at the last trial, and the margin, is another cost.
const CHANGE_FACTOR: f64 = 1.4;
/// The first instances touch most pages for the first time, and are timed by nobody.
const WARMUP_RUNS: u64 = 8;
/// A lap that is longer is not waited for,
const RING_PERIOD_MAX: u64 = 32;
/// except the first, in which pages are touched for the first time.
const FIRST_RING_PERIOD_MAX: u64 = 64;
/// Less stays in the nearest caches, or costs more in hand-overs than in copies.
const SLICE_BYTES_MIN: usize = 4 << 10;
const PICOS_PER_NANO: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that wrote and read: nanoseconds for 1000 bytes of output.
    fn explore_read_write(staging: &mut StoreTuner, through: u64, past: u64) {
        for (store, nanos) in [(Store::Cached, through), (Store::Stream, past)] {
            let mut trial = Sample::default();
            trial.add(500, 0, false, Duration::ZERO);
            trial.add(0, 1000, true, Duration::from_nanos(nanos));
            assert_eq!(staging.learn(store, trial), None);
        }
    }

    fn explore_one_sided(
        staging: &mut StoreTuner,
        (written, received): (usize, usize),
        costs: [u64; 2],
    ) -> Option<u64> {
        let hints = [(Store::Cached, costs[0]), (Store::Stream, costs[1])].map(|(store, nanos)| {
            let mut trial = Sample::default();
            trial.add(written, received, received > 0, Duration::from_nanos(nanos));
            staging.learn(store, trial)
        });
        hints[1]
    }

    #[test]
    fn store_tuner_picks_cheaper_store_and_adapts() {
        let mut staging = StoreTuner::default();
        assert_eq!(staging.best_store(Hysteresis::DEDICATED_CORES), Store::Cached);
        explore_read_write(&mut staging, 300, 100);
        assert_eq!(staging.best_store(Hysteresis::DEDICATED_CORES), Store::Cached, "once is not enough");
        explore_read_write(&mut staging, 300, 100);
        assert_eq!(staging.best_store(Hysteresis::DEDICATED_CORES), Store::Stream);
        (0..SAMPLES).for_each(|_| explore_read_write(&mut staging, 50, 100));
        assert_eq!(staging.best_store(Hysteresis::DEDICATED_CORES), Store::Cached);
    }

    #[test]
    fn store_tuner_has_no_hysteresis_when_oversubscribed() {
        let mut staging = StoreTuner::default();
        (0..SAMPLES).for_each(|_| explore_read_write(&mut staging, 120, 100));
        assert_eq!(
            [Hysteresis::DEDICATED_CORES, Hysteresis::OVERSUBSCRIBED]
                .map(|margin| staging.best_store(margin)),
            [Store::Cached, Store::Stream]
        );
        (0..SAMPLES).for_each(|_| explore_read_write(&mut staging, 95, 100));
        assert_eq!(staging.best_store(Hysteresis::OVERSUBSCRIBED), Store::Cached);
    }

    #[test]
    fn store_tuner_ignores_one_outlier() {
        for (through, past) in [(9000, 100), (50, 1)] {
            let mut staging = StoreTuner::default();
            (0..SAMPLES).for_each(|_| explore_read_write(&mut staging, 50, 100));
            explore_read_write(&mut staging, through, past);
            assert_eq!(staging.best_store(Hysteresis::DEDICATED_CORES), Store::Cached);
        }
    }

    #[test]
    fn store_tuner_write_only_rank_follows_readers() {
        let (mut root, mut near, mut far) =
            (StoreTuner::default(), StoreTuner::default(), StoreTuner::default());
        let twice = |staging: &mut StoreTuner, bytes, costs| {
            explore_one_sided(staging, bytes, costs);
            explore_one_sided(staging, bytes, costs)
        };
        assert_eq!(twice(&mut root, (1000, 0), [50, 100]), None);
        let near = twice(&mut near, (0, 1000), [40, 90]).unwrap();
        let far = twice(&mut far, (0, 1000), [250, 100]).unwrap();
        assert_eq!(
            root.best_store_for_readers([0, near].into_iter(), Hysteresis::DEDICATED_CORES),
            Store::Cached
        );
        assert_eq!(
            root.best_store_for_readers([near, 0, far].into_iter(), Hysteresis::DEDICATED_CORES),
            Store::Stream
        );
        assert_eq!(
            root.best_store_for_readers([0, 0].into_iter(), Hysteresis::DEDICATED_CORES),
            Store::Cached,
            "nobody knows"
        );
        assert_eq!(
            root.best_store(Hysteresis::DEDICATED_CORES),
            Store::Cached,
            "other operations learn nothing from it"
        );
    }

    #[test]
    fn store_tuner_leaves_degraded_store_before_next_explore() {
        let mut staging = StoreTuner::default();
        (0..2).for_each(|_| explore_read_write(&mut staging, 50, 100));
        let mut use_it = |nanos, (written, received)| {
            let mut seen = Sample::default();
            seen.add(written, received, received > 0, Duration::from_nanos(nanos));
            staging.probe(Store::Cached, seen);
            staging.best_store(Hysteresis::DEDICATED_CORES)
        };
        assert_eq!(use_it(250, (500, 1000)), Store::Cached, "it may be an interruption");
        assert_eq!(use_it(250, (500, 1000)), Store::Cached, "or two");
        assert_eq!(use_it(9000, (0, 1000)), Store::Cached, "others may have written in another way");
        assert_eq!(use_it(250, (500, 1000)), Store::Stream);
    }

    #[test]
    fn store_tuner_gives_no_advisory_from_one_store() {
        let mut trial = Sample::default();
        trial.add(0, 1000, true, Duration::from_nanos(10));
        assert_eq!(StoreTuner::default().learn(Store::Cached, trial), None);
    }

    #[test]
    fn store_tuner_explores_in_same_runs_on_all_ranks() {
        let turns = |lap| {
            (0..WARMUP_RUNS + EXPLORE_PERIOD + 40).map(move |instance| StoreTuner::decision(instance, lap))
        };
        let of = |lap, wanted: Decision| {
            let found = turns(lap).zip(0..).filter(move |&(choice, _)| choice == wanted);
            found.map(|(_, instance)| instance).collect::<Vec<u64>>()
        };
        let (first, second) = (WARMUP_RUNS + 2, WARMUP_RUNS + EXPLORE_PERIOD + 2);
        assert_eq!(
            of(2, Decision::Explore(Store::Cached)),
            [first, first + 1, first + 2, second, second + 1, second + 2]
        );
        assert_eq!(of(2, Decision::Explore(Store::Stream))[..3], [first + 3, first + 4, first + 5]);
        assert_eq!(
            of(2, Decision::Fixed(Store::Cached)),
            [(0..first).collect::<Vec<_>>(), vec![second - 2, second - 1]].concat()
        );
        assert_eq!(of(2, Decision::Probe)[..2], [first + 8, first + 16]);
        let waited = of(EXPLORE_PERIOD, Decision::Explore(Store::Cached));
        assert_eq!(
            [waited[0], waited[3]],
            [WARMUP_RUNS + FIRST_RING_PERIOD_MAX, WARMUP_RUNS + EXPLORE_PERIOD + RING_PERIOD_MAX]
        );
        assert!(!StoreTuner::applies_to(SLICE_BYTES_MIN - 1) && StoreTuner::applies_to(SLICE_BYTES_MIN));
    }
}
