//! Bruck's algorithms: a logarithmic number of rounds for any number of ranks.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for
//! all-to-all communications in multiport message-passing systems", IEEE TPDS
//! 8(11), 1997. Blocks are addressed one by one, which spares the all-gather its
//! final rotation and the all-to-all both of its own.

use super::{any, blocks, rounds_of_doubling, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output, scratch,
};

const SOURCE: &str = "Bruck, Ho, Kipnis, Upfal, Weathersby: All-to-all communications, IEEE TPDS 1997";

/// All-gather by doubling what is known.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "bruck",
    collective: Collective::AllGather,
    about: "each round doubles the chunks known: fewest rounds for any number of ranks, for small data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_gather,
    cost: |spec| Cost {
        steps: rounds_of_doubling(spec.ranks),
        blocks: spec.count() * (spec.count() - 1),
        scratch: 0,
    },
};

/// All-to-all through intermediate ranks.
pub const ALL_TO_ALL: Algorithm = Algorithm {
    name: "bruck",
    collective: Collective::AllToAll,
    about: "a block goes as the bits of its distance say, packed with others: fewest messages, for tiny data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_to_all,
    cost: |spec| Cost {
        steps: rounds_of_doubling(spec.ranks),
        // One hop for each bit of each distance.
        blocks: spec.count()
            * (0..spec.count()).map(|distance| u64::from(distance.count_ones())).sum::<u64>(),
        // Every distance but those of one hop or none.
        scratch: spec.count() - 1 - rounds_of_doubling(spec.ranks),
    },
};

fn all_gather(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(0), output(rank));
    let mut known = 1;
    while known < spec.ranks {
        let count = known.min(spec.ranks - known);
        let (to, from) = (spec.before(rank, known), spec.after(rank, known));
        let chunks = |owner| blocks(0..count, |offset| output(spec.after(owner, offset)));
        builder.send(to, chunks(rank)).recv(from, chunks(from));
        known *= 2;
    }
    builder.finish(0, 0)
}

fn all_to_all(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(rank), output(rank));
    let mut hop = 1;
    while hop < spec.ranks {
        let travelling = || (hop..spec.ranks).filter(|distance| distance & hop != 0);
        let sent = blocks(travelling(), |distance| held(spec, rank, distance, hop));
        let received = blocks(travelling(), |distance| taken(spec, rank, distance, hop));
        builder.send(spec.after(rank, hop), sent).recv(spec.before(rank, hop), received);
        hop *= 2;
    }
    builder.finish(spec.ranks - 1 - rounds_of_doubling(spec.ranks) as usize, 0)
}

/// Where the block that goes `distance` in all lies before `hop`: at its start if that is the first.
fn held(spec: &Spec, rank: Rank, distance: usize, hop: usize) -> Block {
    if distance & (hop - 1) == 0 { input(spec.after(rank, distance)) } else { stop(distance) }
}

/// Where the block that goes `distance` in all lies after `hop`: at its goal if that was the last.
fn taken(spec: &Spec, rank: Rank, distance: usize, hop: usize) -> Block {
    if distance < 2 * hop { output(spec.before(rank, distance)) } else { stop(distance) }
}

/// The scratch block for a `distance` of several hops: powers of two are left out of the count.
const fn stop(distance: usize) -> Block {
    scratch(distance - 2 - distance.ilog2() as usize)
}
