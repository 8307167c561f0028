//! Reductions in which the sums stay in place and the ranks take turns to add to them.
//!
//! Each chunk is summed in the window of its owner, the first of the ranks that add to it. The
//! order of the ranks is that of a ring, but no sum is sent on. A rank that writes into the window
//! of another has therefore heard from the ranks before it, and so from the owner.
//!
//! All ranks together have one share of data in progress, while in a two-shot every rank writes a
//! separate share. So the data stays in nearer caches. In return, every rank has to wait for the
//! rank before it, which costs little if ranks share cores. The algorithm is used for large shares
//! on hosts with fewer cores than ranks.
//!
//! An even number of ranks works in two circles. A sum visits all ranks of one circle before it
//! changes to the other. If each half of the ranks is bound to one of two cores, a sum moves
//! between the cores once.
//!
//! Source: the ring of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 2009, without its messages.

use crate::schedule::algorithms::{any_group, one_chunk, one_per_rank, single_rank};
use crate::schedule::{
    Algorithm, ChunkRef, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program,
    ProgramBuilder, Rank, Step, chunk_at, input, output, window,
};

/// All-reduce with sums in the windows of their owners.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "inplace_ring",
    collective: Collective::AllReduce,
    summary: "each chunk is summed in one place, where the ranks add to it in turn: least memory in use",
    citation: "Patarasuk, Yuan: Bandwidth optimal all-reduce, JPDC 2009; in place",
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_per_rank,
    build: &all_reduce,
    complexity: Some(&|spec| Complexity {
        steps: if spec.ranks > 1 { spec.size() } else { 0 },
        chunks: 2 * spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Reduce-scatter in which a chunk's own rank is the last to add to it.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    collective: Collective::ReduceScatter,
    summary: "each chunk is summed in one place, and its own rank adds to it last: least memory in use",
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
    ..ALL_REDUCE
};

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (course, last) = (RingOrder::new(spec), spec.ranks - 1);
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(rank), window(0)).signal();
    for turn in 1..spec.ranks {
        let sum = course.wait_for_sum(&mut builder, rank, turn);
        add_in_place(&mut builder, sum, chunk_at(rank, input(sum)), turn == last);
    }
    let done = course.sum_for(rank, last);
    // This rank has completed this sum itself, so there is nothing to wait for.
    builder.get(done, window(0), output(done));
    for sum in spec.peers(done) {
        builder.wait(course.rank_for(sum, last), spec.ranks as u32).get(sum, window(0), output(sum));
    }
    builder.finish(0, 1)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (course, last) = (RingOrder::new(spec), spec.ranks - 1);
    // A sum is the chunk of the rank that adds to it last, because that rank keeps the result.
    let chunk = |sum| course.rank_for(sum, last);
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(chunk(rank)), window(0)).signal();
    for turn in 1..last {
        let sum = course.wait_for_sum(&mut builder, rank, turn);
        add_in_place(&mut builder, sum, chunk_at(rank, input(chunk(sum))), false);
    }
    let own_sum = course.wait_for_sum(&mut builder, rank, last);
    builder.reduce(vec![chunk_at(own_sum, window(0)), chunk_at(rank, input(rank))], output(0), true);
    builder.finish(0, 1)
}

/// Adds `operand` to a sum in place.
fn add_in_place(builder: &mut ProgramBuilder, sum: usize, operand: ChunkRef, finish: bool) {
    let target = chunk_at(sum, window(0));
    builder.step(Step::Reduce { from: vec![target, operand], into: target, finish }).signal();
}

/// The order in which ranks add to sums. A sum has the number of its owner, which is the first.
struct RingOrder {
    /// Ranks of one circle.
    ring_size: usize,
    rings: usize,
}

impl RingOrder {
    fn new(spec: &GroupSpec) -> Self {
        let circles = if spec.ranks.is_multiple_of(2) { 2 } else { 1 };
        Self { ring_size: spec.ranks / circles, rings: circles }
    }

    fn rank_for(&self, sum: usize, turn: usize) -> Rank {
        self.ring_of(sum, turn) * self.ring_size + (sum + turn) % self.ring_size
    }

    fn sum_for(&self, rank: Rank, turn: usize) -> usize {
        self.ring_of(rank, turn) * self.ring_size
            + (rank + self.ring_size - turn % self.ring_size) % self.ring_size
    }

    /// Waits until the sum of this turn has completed the turn before. Returns its number.
    fn wait_for_sum(&self, builder: &mut ProgramBuilder, rank: Rank, turn: usize) -> usize {
        let sum = self.sum_for(rank, turn);
        builder.wait(self.rank_for(sum, turn - 1), turn as u32);
        sum
    }

    /// The circle of a sum in a turn, or the circle that a rank's sum comes from.
    fn ring_of(&self, number: usize, turn: usize) -> usize {
        (number / self.ring_size + turn / self.ring_size) % self.rings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_order_visits_each_rank_once_and_changes_rings_once() {
        for ranks in 2..=13 {
            let course = RingOrder::new(&GroupSpec::new(ranks));
            for sum in 0..ranks {
                let order: Vec<Rank> = (0..ranks).map(|turn| course.rank_for(sum, turn)).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..ranks).collect::<Vec<_>>());
                assert_eq!(order[0], sum);
                let changes =
                    order.windows(2).filter(|pair| pair[0] / course.ring_size != pair[1] / course.ring_size);
                assert_eq!(changes.count(), course.rings - 1);
                assert!(order.iter().enumerate().all(|(turn, &rank)| course.sum_for(rank, turn) == sum));
            }
        }
    }
}
