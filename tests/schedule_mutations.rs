//! Mutates schedules in small ways: the checker must reject every mutant that is worse than the
//! original.

mod support;

use support::mutants::{Random, mutate, steps_of};
use unisono::schedule::check::{Options, Replayer, check_schedule};
use unisono::schedule::{Algorithm, Collective, GroupSpec, Rank, Schedule, Step};

/// Mutants made of each schedule.
const MUTANTS_PER_SCHEDULE: usize = if cfg!(debug_assertions) { 24 } else { 200 };
const RANKS: std::ops::RangeInclusive<usize> = 2..=9;
const CHUNK_LEN: usize = 2;

#[test]
fn check_rejects_mutated_schedules() {
    let mut random = Random(0x5eed);
    let (mut mutants, mut rejected, mut equivalent) = (0, 0, 0);
    for algorithm in Algorithm::ALL {
        for ranks in RANKS {
            let spec = GroupSpec { ranks, root: random.below(ranks), aggregation: 1 << random.below(3) };
            if !(algorithm.supports)(&spec) {
                continue;
            }
            let original = algorithm.schedule(&spec);
            for _ in 0..MUTANTS_PER_SCHEDULE {
                let mut mutant = original.clone();
                let what = mutate(&mut mutant, &mut random);
                if mutant == original {
                    continue;
                }
                mutants += 1;
                if is_accepted(algorithm, &mutant) {
                    equivalent += 1;
                    let seed = random.next();
                    assert_replays_correctly(
                        &mutant,
                        seed,
                        &format!("{} {} {spec:?}: {what}", spec.ranks, algorithm.name),
                    );
                } else {
                    rejected += 1;
                }
            }
        }
    }
    println!("mutants {mutants} rejected {rejected} equivalent {equivalent}");
    assert!(mutants >= 1000);
    assert_eq!(rejected + equivalent, mutants);
    assert!(rejected * 10 > mutants * 8, "too many mutants change nothing for this to be a test");
}

#[test]
fn check_rejects_removed_steps() {
    // Each of these steps is needed, so none of the mutants can be right.
    let mut random = Random(7);
    for algorithm in Algorithm::ALL {
        let spec = GroupSpec { ranks: 6, root: 1, aggregation: 2 };
        let original = algorithm.schedule(&spec);
        for _ in 0..40 {
            let mut mutant = original.clone();
            let steps = steps_of(&mut mutant, &mut random);
            let index = random.below(steps.len());
            if matches!(steps[index], Step::Wait { .. } | Step::Signal) {
                continue;
            }
            steps.remove(index);
            assert!(!is_accepted(algorithm, &mutant), "{} {}", algorithm.collective, algorithm.name);
        }
    }
}

#[test]
fn unmutated_schedules_replay_correctly() {
    for algorithm in Algorithm::ALL {
        for ranks in RANKS {
            let spec = GroupSpec::new(ranks).with_root(ranks / 2);
            if (algorithm.supports)(&spec) {
                let name = format!("{} {} {spec:?}", algorithm.collective, algorithm.name);
                assert_replays_correctly(&algorithm.schedule(&spec), ranks as u64, &name);
            }
        }
    }
}

/// Returns whether the checker accepts the schedule in both modes, with the stated counts.
fn is_accepted(algorithm: &Algorithm, mutant: &Schedule) -> bool {
    [false, true].into_iter().all(|in_place| {
        let stated = algorithm.complexity.unwrap()(&mutant.spec);
        check_schedule(mutant, &Options { in_place, ..Options::default() }).is_ok_and(|report| {
            (report.steps, report.chunks, report.scratch_chunks)
                == (stated.steps, stated.chunks, stated.scratch_chunks)
        })
    })
}

/// Plays the schedule in many orders; every output must be the right one.
fn assert_replays_correctly(schedule: &Schedule, seed: u64, what: &str) {
    for turn in 0..12 {
        let player = Replayer {
            fifo_slots: [2, 3, 8][turn as usize % 3],
            in_place: turn % 2 == 1,
            chunk_len: CHUNK_LEN,
            // Not linear: finishing parts, or twice, gives something else.
            finish: |sum| sum.wrapping_mul(3).wrapping_add(1),
            seed: seed.wrapping_add(turn),
        };
        let trace =
            player.replay(schedule, element).unwrap_or_else(|violation| panic!("{what}: {violation}"));
        for (rank, output) in trace.outputs.iter().enumerate() {
            let (_, shares) = schedule.collective.shares(schedule.spec.ranks, schedule.spec.root, rank);
            let length = shares * schedule.chunks_per_share * CHUNK_LEN;
            let expected: Vec<_> = (0..length).map(|index| expected(schedule, rank, index)).collect();
            assert_eq!(output, &expected, "{what}: rank {rank}, seed {}", player.seed);
        }
    }
}

fn element(rank: Rank, index: usize) -> i64 {
    Random((rank * 1000 + index) as u64).next() as i64
}

/// Returns the expected element `index` of the output of `rank`.
fn expected(schedule: &Schedule, rank: Rank, index: usize) -> i64 {
    let GroupSpec { ranks, root, .. } = schedule.spec;
    let share_len = schedule.chunks_per_share * CHUNK_LEN;
    let (share, offset) = (index / share_len, index % share_len);
    let own_index = rank * share_len + offset;
    let sum = |index| {
        let sum = (0..ranks).fold(0i64, |sum, rank| sum.wrapping_add(element(rank, index)));
        sum.wrapping_mul(3).wrapping_add(1)
    };
    let prefix = |ranks| (0..ranks).fold(0i64, |sum, rank| sum.wrapping_add(element(rank, index)));
    match schedule.collective {
        Collective::AllReduce | Collective::Reduce => sum(index),
        Collective::ReduceScatter => sum(own_index),
        Collective::AllGather | Collective::Gather => element(share, offset),
        Collective::Broadcast => element(root, index),
        Collective::Scatter => element(root, own_index),
        Collective::AllToAll => element(share, own_index),
        Collective::Barrier => 0,
        Collective::Scan => prefix(rank + 1),
        Collective::ExScan => prefix(rank),
    }
}
