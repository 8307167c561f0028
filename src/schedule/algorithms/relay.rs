//! Sums over windows that stay where they are, and the ranks come to them.
//!
//! Each chunk is summed in the window of its owner, the first of the ranks that add to it in turn: a ring, but nothing is sent on.
//! Whoever writes into another's window has therefore heard from those before it, and so, in the end, from its owner.
//! What is under way is one share for all ranks together, where each rank of a two-shot lays out its own, so that
//! it stays in caches nearer by. The price is as many hand-overs as ranks, which costs little where ranks share cores.
//!
//! An even number of ranks goes round in two circles: a sum gets all of the one before it changes to the other. Where each
//! half of the ranks is bound to one of two cores, it moves from core to core once.
//!
//! Source: the ring of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! JPDC 2009, without its messages.

use super::{alone, any, one_per_rank, whole};
use crate::schedule::{
    Algorithm, Collective, Cost, Place, Program, ProgramBuilder, Rank, Reach, Spec, Step, at, input, output,
    window,
};

/// All-reduce by sums that stay in place.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "relay",
    collective: Collective::AllReduce,
    about: "each chunk is summed in one place, where the ranks add to it in turn: least memory under way",
    source: "Patarasuk, Yuan: Bandwidth optimal all-reduce, JPDC 2009; in place",
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: one_per_rank,
    build: all_reduce,
    cost: |spec| Cost {
        steps: if spec.ranks > 1 { spec.count() } else { 0 },
        blocks: 2 * spec.count() * (spec.count() - 1),
        scratch: 0,
    },
};

/// Reduce-scatter in which a chunk's own rank is the last to add to it.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    collective: Collective::ReduceScatter,
    about: "each chunk is summed in one place, and its own rank adds to it last: least memory under way",
    parts: whole,
    build: reduce_scatter,
    cost: |spec| Cost { steps: spec.count() - 1, blocks: spec.count() * (spec.count() - 1), scratch: 0 },
    ..ALL_REDUCE
};

fn all_reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let (course, last) = (Course::of(spec), spec.ranks - 1);
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(rank), window(0)).signal();
    for turn in 1..spec.ranks {
        let sum = course.await_sum(&mut builder, rank, turn);
        add(&mut builder, sum, at(rank, input(sum)), turn == last);
    }
    let done = course.sum(rank, last);
    builder.get(done, window(0), output(done));
    for sum in spec.peers(done) {
        builder.wait(course.rank(sum, last), spec.ranks as u32).get(sum, window(0), output(sum));
    }
    builder.finish(0, 1)
}

fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let (course, last) = (Course::of(spec), spec.ranks - 1);
    let chunk = |sum| course.rank(sum, last);
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(chunk(rank)), window(0)).signal();
    for turn in 1..last {
        let sum = course.await_sum(&mut builder, rank, turn);
        add(&mut builder, sum, at(rank, input(chunk(sum))), false);
    }
    let own = course.await_sum(&mut builder, rank, last);
    builder.reduce(vec![at(own, window(0)), at(rank, input(rank))], output(0), true);
    builder.finish(0, 1)
}

/// Adds `own` to a sum where that lies.
fn add(builder: &mut ProgramBuilder, sum: usize, own: Place, finish: bool) {
    let into = at(sum, window(0));
    builder.step(Step::Reduce { from: vec![into, own], into, finish }).signal();
}

/// Who adds to which sum in which turn. A sum has the number of its owner, who is the first.
struct Course {
    /// Ranks of one circle.
    circle: usize,
    circles: usize,
}

impl Course {
    fn of(spec: &Spec) -> Self {
        let circles = if spec.ranks.is_multiple_of(2) { 2 } else { 1 };
        Self { circle: spec.ranks / circles, circles }
    }

    fn rank(&self, sum: usize, turn: usize) -> Rank {
        self.other(sum, turn) * self.circle + (sum + turn) % self.circle
    }

    fn sum(&self, rank: Rank, turn: usize) -> usize {
        self.other(rank, turn) * self.circle + (rank + self.circle - turn % self.circle) % self.circle
    }

    /// Waits until the sum that this rank adds to in a turn has had its turn before; says which one.
    fn await_sum(&self, builder: &mut ProgramBuilder, rank: Rank, turn: usize) -> usize {
        let sum = self.sum(rank, turn);
        builder.wait(self.rank(sum, turn - 1), turn as u32);
        sum
    }

    /// The circle that a sum of this number is in, or a rank's sum comes from, in a turn.
    fn other(&self, number: usize, turn: usize) -> usize {
        (number / self.circle + turn / self.circle) % self.circles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_adds_to_every_sum_once_and_changes_circles_once() {
        for ranks in 2..=13 {
            let course = Course::of(&Spec { ranks, root: 0, aggregation: 1 });
            for sum in 0..ranks {
                let order: Vec<Rank> = (0..ranks).map(|turn| course.rank(sum, turn)).collect();
                let mut all = order.clone();
                all.sort_unstable();
                assert_eq!(all, (0..ranks).collect::<Vec<_>>());
                assert_eq!(order[0], sum);
                let changes =
                    order.windows(2).filter(|pair| pair[0] / course.circle != pair[1] / course.circle);
                assert_eq!(changes.count(), course.circles - 1);
                assert!(order.iter().enumerate().all(|(turn, &rank)| course.sum(rank, turn) == sum));
            }
        }
    }
}
