//! Every algorithm of the table, for every number of ranks, root and aggregation.

use unisono::schedule::check::{Options, Player, RowReport, cases, check, survey};
use unisono::schedule::{Algorithm, Collective, Reach, Spec, find};

/// Unoptimised, the whole grid would take minutes.
const RANKS_MAX: usize = if cfg!(debug_assertions) { 33 } else { 129 };

fn assert_right(row: &RowReport) {
    println!(
        "{:14} {:13} {:5} cases  {:4} ranks: {:4} steps {:8} blocks {:4} scratch, {} in a queue, {:.2?}",
        row.collective.name(),
        row.name,
        row.cases,
        row.ranks,
        row.steps,
        row.blocks,
        row.scratch,
        row.fifo_slots_needed,
        row.elapsed
    );
    if let Some((spec, violation)) = &row.violation {
        panic!("{} {} {spec:?}: {violation}", row.collective, row.name);
    }
    assert!(row.cases > 0, "{} {} fits nothing", row.collective, row.name);
    assert!(row.fifo_slots_needed <= 2, "{} {} needs deep queues", row.collective, row.name);
}

#[test]
fn every_algorithm_is_right_for_every_spec() {
    for algorithm in Algorithm::ALL {
        assert_right(&survey(algorithm, &cases(algorithm, RANKS_MAX, false)));
    }
}

#[test]
fn every_algorithm_is_right_for_many_ranks() {
    let ranks_max = if cfg!(debug_assertions) { 192 } else { 1024 };
    for algorithm in Algorithm::ALL {
        let mut specs = cases(algorithm, 0, true);
        // 1024 ranks are enough where a thousand are as slow to check.
        specs.retain(|spec| {
            spec.ranks <= ranks_max && (spec.ranks != 1000 || (algorithm.cost)(spec).blocks < 3_000_000)
        });
        if !specs.is_empty() {
            assert_right(&survey(algorithm, &specs));
        }
    }
}

#[test]
fn in_place_and_out_of_place_agree() {
    for algorithm in Algorithm::ALL {
        for spec in cases(algorithm, 17, false) {
            let [apart, in_place] = [false, true]
                .map(|in_place| check(algorithm, &spec, &Options { in_place, ..Options::default() }));
            assert_eq!(apart, in_place, "{} {} {spec:?}", algorithm.collective, algorithm.name);
            assert!(apart.is_ok());
        }
    }
}

#[test]
fn every_collective_has_an_algorithm_with_and_without_windows() {
    for collective in Collective::ALL {
        for reach in [Reach::Messages, Reach::Windows] {
            let mut rows = Algorithm::ALL.iter().filter(|row| row.collective == collective);
            assert!(
                rows.any(|row| row.reach == reach
                    && (1..=RANKS_MAX).all(|ranks| (row.fits)(&Spec { ranks, root: 0, aggregation: 1 }))),
                "{collective} with {reach:?}"
            );
        }
    }
}

#[test]
fn aggregation_never_changes_a_bit() {
    for collective in [Collective::ReduceScatter, Collective::AllReduce, Collective::AllGather] {
        let pat = find(collective, "pat").expect("pat is in the table");
        for ranks in 2..=RANKS_MAX {
            let report = |aggregation| {
                check(pat, &Spec { ranks, root: 0, aggregation }, &Options::default()).expect("pat is right")
            };
            let plain = report(1);
            let mut aggregation = 2;
            while aggregation <= ranks.next_power_of_two() / 2 {
                let aggregated = report(aggregation);
                assert_eq!(
                    aggregated.order, plain.order,
                    "{collective}, {ranks} ranks, {aggregation} together"
                );
                assert_eq!(aggregated.expression, plain.expression);
                aggregation *= 2;
            }
        }
    }
}

#[test]
fn pat_sums_in_the_canonical_order() {
    let pat = find(Collective::ReduceScatter, "pat").expect("pat is in the table");
    let report =
        check(pat, &Spec { ranks: 8, root: 0, aggregation: 2 }, &Options::default()).expect("pat is right");
    // Partial sums for a rank come from ranks below it, so its own tree runs downwards from 8.
    let expression = report.expression.expect("a reduction");
    assert_eq!(expression, "(((0+7)+(5+6))+((1+2)+(3+4)))");
}

#[test]
fn the_worked_example_of_the_ring() {
    let ring = find(Collective::AllReduce, "ring").expect("the ring is in the table");
    let schedule = ring.schedule(&Spec { ranks: 4, root: 0, aggregation: 1 });
    for in_place in [false, true] {
        for seed in 0..50 {
            let player = Player { seed, in_place, fifo_slots: 1 + seed as usize % 3, ..Player::default() };
            let trace = player.play(&schedule, |rank, index| (index + rank) as i64).expect("it plays");
            assert_eq!(trace.outputs, vec![vec![6, 10, 14, 18]; 4]);
            assert_eq!(trace.rounds, 6);
        }
    }
}

#[test]
fn pat_needs_as_many_rounds_as_ranks_have_bits() {
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        let pat = find(collective, "pat").expect("pat is in the table");
        for ranks in 2..=RANKS_MAX {
            let spec = Spec { ranks, root: 0, aggregation: ranks };
            let report = check(pat, &spec, &Options::default()).expect("pat is right");
            assert_eq!(report.steps, u64::from((ranks - 1).ilog2() + 1), "{collective}, {ranks} ranks");
        }
    }
}
