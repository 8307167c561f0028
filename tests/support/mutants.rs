//! Schedules that were changed in a small way.

use unisono::schedule::{Chunk, Rank, Schedule, Space, Step};

/// Harms the schedule somehow; says how.
pub(crate) fn mutate(schedule: &mut Schedule, random: &mut Random) -> &'static str {
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
pub(crate) fn steps_of<'s>(schedule: &'s mut Schedule, random: &mut Random) -> &'s mut Vec<Step> {
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
    let (first, second) = (peer_of(&mut steps[index]).copied(), peer_of(&mut steps[other]).copied());
    if let (Some(first), Some(second)) = (first, second) {
        peer_of(&mut steps[index]).into_iter().for_each(|peer| *peer = second);
        peer_of(&mut steps[other]).into_iter().for_each(|peer| *peer = first);
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
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
