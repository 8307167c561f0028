//! Collectives over messages that reduce in the order of the ranks, as those over windows do: every
//! operand goes straight to who reduces it, which sums all of them in one pass.
//!
//! The fewest bytes, one round; the operands of a chunk are held until the last has come. What it is for: results
//! whose bits depend neither on the transport nor on how a buffer is cut.
//!
//! Source: the pairwise exchange of Thakur, Rabenseifner, Gropp, "Optimization of collective
//! communication operations in MPICH", IJHPCA 19(1), 2005.

use super::{alone, any, one_per_rank, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Place, Program, ProgramBuilder, Rank, Reach, Spec, at, input, output,
    scratch,
};

const NAME: &str = "ordered";
const SOURCE: &str = "Thakur, Rabenseifner, Gropp: Collective communication in MPICH, IJHPCA 2005";

/// All-reduce: everyone gets all operands of its chunk, and sends the result to all.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::AllReduce,
    about: "operands go straight to the owner of their chunk, which sums them in rank order: fewest bytes",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: one_per_rank,
    build: all_reduce,
    cost: |spec| cost(spec, 2),
};

/// All-reduce without cutting anything: everyone gets all operands whole.
pub const NAIVE: Algorithm = Algorithm {
    name: "naive",
    collective: Collective::AllReduce,
    about: "everyone sends all it has to everyone: the simplest, at N/2 times the ring's bytes",
    source: "what data parallel training is explained with before the ring",
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: naive,
    cost: |spec| cost(spec, 1),
};

/// Reduce-scatter: everyone gets all operands of its chunk.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::ReduceScatter,
    about: "operands go straight to the owner of their chunk, which sums them in rank order: fewest bytes",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: reduce_scatter,
    cost: |spec| cost(spec, 1),
};

/// Reduce: the root gets all operands.
pub const REDUCE: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::Reduce,
    about: "operands go straight to the root, which sums them in rank order: one round",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: reduce,
    cost: |spec| Cost { blocks: spec.count() - 1, ..cost(spec, 1) },
};

fn cost(spec: &Spec, phases: u64) -> Cost {
    let peers = spec.count() - 1;
    Cost { steps: phases * peers, blocks: phases * spec.count() * peers, scratch: peers }
}

fn all_reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    scatter(&mut builder, spec, rank);
    collect(&mut builder, spec, rank, input(rank), output(rank));
    for to in spec.peers(rank) {
        builder.send(to, [output(rank)]);
    }
    for from in spec.peers(rank).rev() {
        builder.recv(from, [output(from)]);
    }
    builder.finish(spec.ranks - 1, 0)
}

fn naive(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    for to in spec.peers(rank) {
        builder.send(to, [input(0)]);
    }
    collect(&mut builder, spec, rank, input(0), output(0));
    builder.finish(spec.ranks - 1, 0)
}

fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    scatter(&mut builder, spec, rank);
    collect(&mut builder, spec, rank, input(rank), output(0));
    builder.finish(spec.ranks - 1, 0)
}

fn reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.send(spec.root, [input(0)]);
        return builder.finish(0, 0);
    }
    collect(&mut builder, spec, rank, input(0), output(0));
    builder.finish(spec.ranks - 1, 0)
}

/// Sends every chunk to its owner. No pair of ranks has more than this one message under way, so nobody waits.
fn scatter(builder: &mut ProgramBuilder, spec: &Spec, rank: Rank) {
    for to in spec.peers(rank) {
        builder.send(to, [input(to)]);
    }
}

/// Receives the operands of all peers, then sums them and `own` in rank order.
fn collect(builder: &mut ProgramBuilder, spec: &Spec, rank: Rank, own: Block, into: Block) {
    let slot = |from: Rank| scratch(if from < rank { from } else { from - 1 });
    for from in spec.peers(rank).rev() {
        builder.recv(from, [slot(from)]);
    }
    let operand = |from| if from == rank { own } else { slot(from) };
    let operands: Vec<Place> = (0..spec.ranks).map(|from| at(rank, operand(from))).collect();
    builder.reduce(operands, into, true);
}
