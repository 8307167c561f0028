use crate::engine::store_tuner::cost::SAMPLES;
use crate::engine::store_tuner::*;
use std::time::Duration;

/// Records a pair of runs that wrote and read: nanoseconds for 1000 bytes of output.
fn explore_read_write(tuner: &mut StoreTuner, cached: u64, nontemporal: u64) {
    for (store, nanos) in [(Store::Cached, cached), (Store::Stream, nontemporal)] {
        let mut sample = Sample::default();
        sample.add(500, 0, false, Duration::ZERO);
        sample.add(0, 1000, true, Duration::from_nanos(nanos));
        assert_eq!(tuner.learn(store, sample), None);
    }
}

fn explore_one_sided(
    tuner: &mut StoreTuner,
    (written, received): (usize, usize),
    costs: [u64; 2],
) -> Option<u64> {
    let hints = [(Store::Cached, costs[0]), (Store::Stream, costs[1])].map(|(store, nanos)| {
        let mut sample = Sample::default();
        sample.add(written, received, received > 0, Duration::from_nanos(nanos));
        tuner.learn(store, sample)
    });
    hints[1]
}

#[test]
fn store_tuner_picks_cheaper_store_and_adapts() {
    let mut tuner = StoreTuner::default();
    assert_eq!(tuner.best_store(Hysteresis::DEDICATED_CORES), Store::Cached);
    explore_read_write(&mut tuner, 300, 100);
    assert_eq!(tuner.best_store(Hysteresis::DEDICATED_CORES), Store::Cached, "once is not enough");
    explore_read_write(&mut tuner, 300, 100);
    assert_eq!(tuner.best_store(Hysteresis::DEDICATED_CORES), Store::Stream);
    (0..SAMPLES).for_each(|_| explore_read_write(&mut tuner, 50, 100));
    assert_eq!(tuner.best_store(Hysteresis::DEDICATED_CORES), Store::Cached);
}

#[test]
fn store_tuner_has_no_hysteresis_when_oversubscribed() {
    let mut tuner = StoreTuner::default();
    (0..SAMPLES).for_each(|_| explore_read_write(&mut tuner, 120, 100));
    assert_eq!(
        [Hysteresis::DEDICATED_CORES, Hysteresis::OVERSUBSCRIBED].map(|margin| tuner.best_store(margin)),
        [Store::Cached, Store::Stream]
    );
    (0..SAMPLES).for_each(|_| explore_read_write(&mut tuner, 95, 100));
    assert_eq!(tuner.best_store(Hysteresis::OVERSUBSCRIBED), Store::Cached);
}

#[test]
fn store_tuner_ignores_one_outlier() {
    for (cached, nontemporal) in [(9000, 100), (50, 1)] {
        let mut tuner = StoreTuner::default();
        (0..SAMPLES).for_each(|_| explore_read_write(&mut tuner, 50, 100));
        explore_read_write(&mut tuner, cached, nontemporal);
        assert_eq!(tuner.best_store(Hysteresis::DEDICATED_CORES), Store::Cached);
    }
}

#[test]
fn store_tuner_write_only_rank_follows_readers() {
    let (mut root, mut close, mut far) =
        (StoreTuner::default(), StoreTuner::default(), StoreTuner::default());
    let twice = |tuner: &mut StoreTuner, bytes, costs| {
        explore_one_sided(tuner, bytes, costs);
        explore_one_sided(tuner, bytes, costs)
    };
    assert_eq!(twice(&mut root, (1000, 0), [50, 100]), None);
    let close = twice(&mut close, (0, 1000), [40, 90]).unwrap();
    let far = twice(&mut far, (0, 1000), [250, 100]).unwrap();
    assert_eq!(
        root.best_store_for_readers([0, close].into_iter(), Hysteresis::DEDICATED_CORES),
        Store::Cached
    );
    assert_eq!(
        root.best_store_for_readers([close, 0, far].into_iter(), Hysteresis::DEDICATED_CORES),
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
    let mut tuner = StoreTuner::default();
    (0..2).for_each(|_| explore_read_write(&mut tuner, 50, 100));
    let mut use_it = |nanos, (written, received)| {
        let mut sample = Sample::default();
        sample.add(written, received, received > 0, Duration::from_nanos(nanos));
        tuner.probe(Store::Cached, sample);
        tuner.best_store(Hysteresis::DEDICATED_CORES)
    };
    assert_eq!(use_it(250, (500, 1000)), Store::Cached, "it may be an interruption");
    assert_eq!(use_it(250, (500, 1000)), Store::Cached, "or two");
    assert_eq!(use_it(9000, (0, 1000)), Store::Cached, "others may have written in another way");
    assert_eq!(use_it(250, (500, 1000)), Store::Stream);
}

#[test]
fn store_tuner_gives_no_advisory_from_one_store() {
    let mut sample = Sample::default();
    sample.add(0, 1000, true, Duration::from_nanos(10));
    assert_eq!(StoreTuner::default().learn(Store::Cached, sample), None);
}

#[test]
fn store_tuner_explores_in_same_runs_on_all_ranks() {
    let turns =
        |period| (0..WARMUP_RUNS + EXPLORE_PERIOD + 40).map(move |run| StoreTuner::decision(run, period));
    let runs_of = |period, wanted: Decision| {
        let found = turns(period).zip(0..).filter(move |&(decision, _)| decision == wanted);
        found.map(|(_, run)| run).collect::<Vec<u64>>()
    };
    let (first, second) = (WARMUP_RUNS + 2, WARMUP_RUNS + EXPLORE_PERIOD + 2);
    assert_eq!(
        runs_of(2, Decision::Explore(Store::Cached)),
        [first, first + 1, first + 2, second, second + 1, second + 2]
    );
    assert_eq!(runs_of(2, Decision::Explore(Store::Stream))[..3], [first + 3, first + 4, first + 5]);
    assert_eq!(
        runs_of(2, Decision::Fixed(Store::Cached)),
        [(0..first).collect::<Vec<_>>(), vec![second - 2, second - 1]].concat()
    );
    assert_eq!(runs_of(2, Decision::Probe)[..2], [first + 8, first + 16]);
    let waited = runs_of(EXPLORE_PERIOD, Decision::Explore(Store::Cached));
    assert_eq!(
        [waited[0], waited[3]],
        [WARMUP_RUNS + FIRST_RING_PERIOD_MAX, WARMUP_RUNS + EXPLORE_PERIOD + RING_PERIOD_MAX]
    );
    assert!(!StoreTuner::applies_to(SLICE_BYTES_MIN - 1) && StoreTuner::applies_to(SLICE_BYTES_MIN));
}
