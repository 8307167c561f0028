//! Every algorithm of the table, for every number of ranks, root and aggregation.

use unisono::schedule::check::{AlgorithmReport, Options, Replayer, cases, check, sweep};
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess, find};

/// Without optimization, the whole grid takes minutes.
const RANKS_MAX: usize = if cfg!(debug_assertions) { 33 } else { 129 };

fn assert_passed(row: &AlgorithmReport) {
    println!(
        "{:14} {:13} {:5} cases  {:4} ranks: {:4} steps {:8} blocks {:4} scratch, {} in a queue, {:.2?}",
        row.collective.name(),
        row.name,
        row.cases,
        row.ranks,
        row.steps,
        row.chunks,
        row.scratch_chunks,
        row.min_fifo_slots,
        row.elapsed
    );
    if let Some((spec, violation)) = &row.violation {
        panic!("{} {} {spec:?}: {violation}", row.collective, row.name);
    }
    assert!(row.cases > 0, "{} {} fits nothing", row.collective, row.name);
    assert!(row.min_fifo_slots <= 2, "{} {} needs deep queues", row.collective, row.name);
}

#[test]
fn every_algorithm_passes_check() {
    for algorithm in Algorithm::ALL {
        assert_passed(&sweep(algorithm, &cases(algorithm, RANKS_MAX, false)));
    }
}

#[test]
fn every_algorithm_passes_check_at_large_scale() {
    let ranks_max = if cfg!(debug_assertions) { 192 } else { 1024 };
    for algorithm in Algorithm::ALL {
        let mut specs = cases(algorithm, 0, true);
        // 1024 ranks are enough where a thousand are as slow to check.
        specs.retain(|spec| {
            spec.ranks <= ranks_max
                && (spec.ranks != 1000 || algorithm.complexity.unwrap()(spec).chunks < 3_000_000)
        });
        if !specs.is_empty() {
            assert_passed(&sweep(algorithm, &specs));
        }
    }
}

#[test]
fn check_in_place_equals_out_of_place() {
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
fn every_collective_has_two_sided_and_window_algorithms() {
    for collective in Collective::ALL {
        for reach in [PeerAccess::TwoSided, PeerAccess::Window] {
            let mut rows = Algorithm::ALL.iter().filter(|row| row.collective == collective);
            assert!(
                rows.any(|row| row.peer_access == reach
                    && (1..=RANKS_MAX).all(|ranks| (row.supports)(&GroupSpec {
                        ranks,
                        root: 0,
                        aggregation: 1
                    }))),
                "{collective} with {reach:?}"
            );
        }
    }
}

#[test]
fn pat_aggregation_keeps_results_bitwise() {
    for collective in [Collective::ReduceScatter, Collective::AllReduce, Collective::AllGather] {
        let pat = find(collective, "pat").expect("pat is in the table");
        for ranks in 2..=RANKS_MAX {
            let report = |aggregation| {
                check(pat, &GroupSpec { ranks, root: 0, aggregation }, &Options::default())
                    .expect("pat is right")
            };
            let plain = report(1);
            let mut aggregation = 2;
            while aggregation <= ranks.next_power_of_two() / 2 {
                let aggregated = report(aggregation);
                assert_eq!(
                    aggregated.order_hash, plain.order_hash,
                    "{collective}, {ranks} ranks, {aggregation} together"
                );
                assert_eq!(aggregated.expression, plain.expression);
                aggregation *= 2;
            }
        }
    }
}

#[test]
fn pat_sums_in_canonical_order() {
    let pat = find(Collective::ReduceScatter, "pat").expect("pat is in the table");
    let report = check(pat, &GroupSpec { ranks: 8, root: 0, aggregation: 2 }, &Options::default())
        .expect("pat is right");
    // Partial sums for a rank come from ranks below it, so its own tree runs downwards from 8.
    let expression = report.expression.expect("a reduction");
    assert_eq!(expression, "(((0+7)+(5+6))+((1+2)+(3+4)))");
}

#[test]
fn ring_four_ranks_matches_worked_example() {
    let ring = find(Collective::AllReduce, "ring").expect("the ring is in the table");
    let schedule = ring.schedule(&GroupSpec::new(4));
    for in_place in [false, true] {
        for seed in 0..50 {
            let player =
                Replayer { seed, in_place, fifo_slots: 1 + seed as usize % 3, ..Replayer::default() };
            let trace = player.replay(&schedule, |rank, index| (index + rank) as i64).expect("it plays");
            assert_eq!(trace.outputs, vec![vec![6, 10, 14, 18]; 4]);
            assert_eq!(trace.rounds, 6);
        }
    }
}

#[test]
fn pat_fully_aggregated_takes_log2_rounds() {
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        let pat = find(collective, "pat").expect("pat is in the table");
        for ranks in 2..=RANKS_MAX {
            let spec = GroupSpec { ranks, root: 0, aggregation: ranks };
            let report = check(pat, &spec, &Options::default()).expect("pat is right");
            assert_eq!(report.steps, u64::from((ranks - 1).ilog2() + 1), "{collective}, {ranks} ranks");
        }
    }
}
