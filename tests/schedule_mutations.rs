//! Mutates schedules in small ways: the checker must reject every mutant that is worse than the
//! original.

use unisono::schedule::check::{Options, Replayer, check_schedule};
use unisono::schedule::{Algorithm, Chunk, Collective, GroupSpec, Rank, Schedule, Space, Step};

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
    let (share, within) = (index / share_len, index % share_len);
    let own = rank * share_len + within;
    let sum = |index| {
        let sum = (0..ranks).fold(0i64, |sum, rank| sum.wrapping_add(element(rank, index)));
        sum.wrapping_mul(3).wrapping_add(1)
    };
    let prefix = |ranks| (0..ranks).fold(0i64, |sum, rank| sum.wrapping_add(element(rank, index)));
    match schedule.collective {
        Collective::AllReduce | Collective::Reduce => sum(index),
        Collective::ReduceScatter => sum(own),
        Collective::AllGather | Collective::Gather => element(share, within),
        Collective::Broadcast => element(root, index),
        Collective::Scatter => element(root, own),
        Collective::AllToAll => element(share, own),
        Collective::Barrier => 0,
        Collective::Scan => prefix(rank + 1),
        Collective::ExScan => prefix(rank),
    }
}

/// Harms the schedule somehow; says how.
fn mutate(schedule: &mut Schedule, random: &mut Random) -> &'static str {
    let ranks = schedule.spec.ranks;
    let kind = random.below(11);
    if kind == 10 {
        let program = &mut schedule.programs[random.below(ranks)];
        if let Some(lane_program) = program.lane_programs.first_mut() {
            lane_program.lane ^= 1;
        }
        return "another lane";
    }
    let steps = steps_of(schedule, random);
    let index = random.below(steps.len());
    let other = random.below(steps.len());
    match kind {
        0 => {
            steps.remove(index);
            "a step dropped"
        }
        1 => {
            steps.insert(index, steps[index].clone());
            "a step twice"
        }
        2 => {
            steps.swap(index, other);
            "two steps swapped"
        }
        3 => {
            let step = steps.remove(index);
            steps.insert((index + 1).min(steps.len()), step);
            "a step later"
        }
        4 => {
            swap_peers(steps, index, other);
            "two peers swapped"
        }
        5 => {
            if let Some(peer) = peer_of(&mut steps[index]) {
                *peer = random.below(ranks);
            }
            "another peer"
        }
        6 => {
            flip_finish(steps, index);
            "finished elsewhere"
        }
        7 => {
            mutate_wait_count(steps, index, random);
            "another signal"
        }
        8 => {
            mutate_chunk(&mut steps[index], random, |chunk, random| {
                chunk.index = (chunk.index + 1 + random.below(2) as u32) % 8;
            });
            "another chunk"
        }
        _ => {
            let spaces = [Space::Input, Space::Output, Space::Scratch, Space::Window];
            mutate_chunk(&mut steps[index], random, |chunk, random| chunk.space = spaces[random.below(4)]);
            "another memory"
        }
    }
}

/// The steps of some lane program that has any.
fn steps_of<'s>(schedule: &'s mut Schedule, random: &mut Random) -> &'s mut Vec<Step> {
    let mut lane_programs: Vec<_> = schedule
        .programs
        .iter_mut()
        .flat_map(|program| &mut program.lane_programs)
        .filter(|lane_program| !lane_program.steps.is_empty())
        .collect();
    let chosen = random.below(lane_programs.len());
    &mut lane_programs.swap_remove(chosen).steps
}

fn peer_of(step: &mut Step) -> Option<&mut Rank> {
    match step {
        Step::Send { peer, .. } | Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => Some(peer),
        Step::Wait { peer, .. } => Some(peer),
        Step::Copy { from, .. } => Some(&mut from.rank),
        Step::Reduce { from, .. } => from.last_mut().map(|place| &mut place.rank),
        Step::Signal => None,
    }
}

fn swap_peers(steps: &mut [Step], index: usize, other: usize) {
    let (one, two) = (peer_of(&mut steps[index]).copied(), peer_of(&mut steps[other]).copied());
    if let (Some(one), Some(two)) = (one, two) {
        peer_of(&mut steps[index]).into_iter().for_each(|peer| *peer = two);
        peer_of(&mut steps[other]).into_iter().for_each(|peer| *peer = one);
    }
}

/// Flips the next flag there is from `index` on.
fn flip_finish(steps: &mut [Step], index: usize) {
    for step in &mut steps[index..] {
        if let Step::RecvReduce { finish, .. } | Step::Reduce { finish, .. } = step {
            *finish = !*finish;
            return;
        }
    }
}

/// Changes the next wait there is from `index` on.
fn mutate_wait_count(steps: &mut [Step], index: usize, random: &mut Random) {
    for step in &mut steps[index..] {
        if let Step::Wait { signals, .. } = step {
            *signals = if random.below(2) == 0 { signals.saturating_sub(1) } else { *signals + 1 };
            return;
        }
    }
}

fn mutate_chunk(step: &mut Step, random: &mut Random, harm: impl Fn(&mut Chunk, &mut Random)) {
    let mut chunks: Vec<&mut Chunk> = match step {
        Step::Send { chunks, .. } => chunks.iter_mut().collect(),
        Step::Recv { into, .. } => into.iter_mut().collect(),
        Step::RecvReduce { with, into, .. } => with.iter_mut().chain(into).collect(),
        Step::Copy { from, into } => vec![&mut from.chunk, &mut into.chunk],
        Step::Reduce { from, into, .. } => {
            from.iter_mut().chain([into]).map(|place| &mut place.chunk).collect()
        }
        Step::Signal | Step::Wait { .. } => return,
    };
    if chunks.is_empty() {
        return;
    }
    let chosen = random.below(chunks.len());
    harm(chunks[chosen], random);
}

/// A small reproducible generator: a counter, mixed by shifts (Marsaglia) and a product.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
