//! Reductions over messages that add operands in rank order, as reductions over windows do.
//!
//! Every operand is sent directly to the rank that reduces it, which adds all of them in one pass.
//! This moves the fewest bytes in one round, but the operands of a chunk are held until the last
//! has arrived. They are used for results whose bits must not depend on the transport or on the
//! division of a buffer.
//!
//! Source: the pairwise exchange of Thakur, Rabenseifner, Gropp, "Optimization of collective
//! communication operations in MPICH", IJHPCA 19(1), 2005.

use crate::schedule::algorithms::{any_group, one_chunk, one_per_rank, single_rank};
use crate::schedule::{
    Algorithm, Chunk, ChunkRef, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program,
    ProgramBuilder, Rank, chunk_at, input, output, scratch,
};

const NAME: &str = "rank_ordered";
const SOURCE: &str = "Thakur, Rabenseifner, Gropp: Collective communication in MPICH, IJHPCA 2005";

/// All-reduce: every rank receives all operands of its chunk and sends the result to all.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::AllReduce,
    summary: "operands go directly to the owner of their chunk, which sums them in rank order: fewest bytes",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::RankOrder,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_per_rank,
    build: &all_reduce,
    complexity: Some(&|spec| complexity(spec, 2)),
};

/// All-reduce of whole shares: every rank receives all operands.
pub const NAIVE: Algorithm = Algorithm {
    name: "naive",
    collective: Collective::AllReduce,
    summary: "every rank sends its whole share to every rank: the simplest, at N/2 times the ring's bytes",
    citation: "what data parallel training is explained with before the ring",
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::RankOrder,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &naive,
    complexity: Some(&|spec| complexity(spec, 1)),
};

/// Reduce-scatter: every rank receives all operands of its chunk.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::ReduceScatter,
    summary: "operands go directly to the owner of their chunk, which sums them in rank order: fewest bytes",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::RankOrder,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| complexity(spec, 1)),
};

/// Reduce: the root receives all operands.
pub const REDUCE: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::Reduce,
    summary: "operands go directly to the root, which sums them in rank order: one round",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::RankOrder,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce,
    complexity: Some(&|spec| Complexity { chunks: spec.size() - 1, ..complexity(spec, 1) }),
};

fn complexity(spec: &GroupSpec, phases: u64) -> Complexity {
    let peers = spec.size() - 1;
    Complexity { steps: phases * peers, chunks: phases * spec.size() * peers, scratch_chunks: peers }
}

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    scatter(&mut builder, spec, rank);
    reduce_in_rank_order(&mut builder, spec, rank, input(rank), output(rank));
    for receiver in spec.peers(rank) {
        builder.send(receiver, [output(rank)]);
    }
    for sender in spec.peers(rank).rev() {
        builder.recv(sender, [output(sender)]);
    }
    builder.finish(spec.ranks - 1, 0)
}

fn naive(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    for receiver in spec.peers(rank) {
        builder.send(receiver, [input(0)]);
    }
    reduce_in_rank_order(&mut builder, spec, rank, input(0), output(0));
    builder.finish(spec.ranks - 1, 0)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    scatter(&mut builder, spec, rank);
    reduce_in_rank_order(&mut builder, spec, rank, input(rank), output(0));
    builder.finish(spec.ranks - 1, 0)
}

fn reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.send(spec.root, [input(0)]);
        return builder.finish(0, 0);
    }
    reduce_in_rank_order(&mut builder, spec, rank, input(0), output(0));
    builder.finish(spec.ranks - 1, 0)
}

/// Sends every chunk to its owner. Each pair of ranks has one message in flight, so no send waits.
fn scatter(builder: &mut ProgramBuilder, spec: &GroupSpec, rank: Rank) {
    for receiver in spec.peers(rank) {
        builder.send(receiver, [input(receiver)]);
    }
}

/// Receives the operands of all peers, then sums them and `own_chunk` in rank order.
fn reduce_in_rank_order(
    builder: &mut ProgramBuilder,
    spec: &GroupSpec,
    rank: Rank,
    own_chunk: Chunk,
    target: Chunk,
) {
    let slot = |sender: Rank| scratch(if sender < rank { sender } else { sender - 1 });
    // The rank just below sends to this one first, and the rank just above sends last.
    for sender in spec.peers(rank).rev() {
        builder.recv(sender, [slot(sender)]);
    }
    let operand = |sender| if sender == rank { own_chunk } else { slot(sender) };
    let operands: Vec<ChunkRef> = (0..spec.ranks).map(|sender| chunk_at(rank, operand(sender))).collect();
    builder.reduce(operands, target, true);
}
