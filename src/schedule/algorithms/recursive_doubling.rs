//! Recursive doubling, in which neighbors in every dimension of a hypercube exchange all their
//! data.
//!
//! The number of rounds is the logarithm of the number of ranks. Ranks beyond the largest power of
//! two send their data to a corner first and receive the result last. The algorithm is used for
//! small shares.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19(1), 2005.

use crate::schedule::algorithms::hypercube::Hypercube;
use crate::schedule::algorithms::{any_group, chunk_list, one_chunk, single_rank};
use crate::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    input, output,
};

const SOURCE: &str = "Thakur, Rabenseifner, Gropp: Collective communication in MPICH, IJHPCA 2005";

/// All-reduce by recursive doubling.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "recursive_doubling",
    collective: Collective::AllReduce,
    summary: "neighbors in a hypercube exchange whole sums: fewest rounds, for tiny data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_reduce,
    complexity: Some(&|spec| {
        let cube = Hypercube::new(spec);
        let (corners, extras) = (cube.nodes as u64, cube.folded_ranks() as u64);
        let steps = cube.dimensions() + cube.fold_rounds();
        Complexity { steps, chunks: corners * cube.dimensions() + 2 * extras, scratch_chunks: 0 }
    }),
};

/// All-gather by recursive doubling.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "recursive_doubling",
    collective: Collective::AllGather,
    summary: "neighbors in a hypercube exchange all they have: fewest rounds, at powers of two",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_gather,
    complexity: Some(&|spec| {
        let cube = Hypercube::new(spec);
        let steps = cube.dimensions() + cube.fold_rounds();
        Complexity { steps, chunks: spec.size() * (spec.size() - 1), scratch_chunks: 0 }
    }),
};

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (cube, mut builder) = (Hypercube::new(spec), ProgramBuilder::new(rank));
    if let Some(corner) = cube.folds_onto(rank) {
        builder.send(corner, [input(0)]).recv(corner, [output(0)]);
        return builder.finish(0, 0);
    }
    let (extra, sum) = (cube.folded_rank_of(rank), output(0));
    let mut held = input(0);
    if let Some(extra) = extra {
        builder.recv_reduce(extra, [held], [sum], false);
        held = sum;
    }
    let mut size = 1;
    while size < cube.nodes {
        let (peer, last) = (rank ^ size, 2 * size == cube.nodes);
        builder.send(peer, [held]).recv_reduce(peer, [held], [sum], last);
        held = sum;
        size *= 2;
    }
    if let Some(extra) = extra {
        builder.send(extra, [sum]);
    }
    builder.finish(0, 0)
}

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
    let (cube, mut builder) = (Hypercube::new(spec), ProgramBuilder::new(rank));
    let all_but = |left_out| chunk_list((0..spec.ranks).filter(|&chunk| chunk != left_out), output);
    builder.copy(input(0), output(rank));
    if let Some(corner) = cube.folds_onto(rank) {
        builder.send(corner, [output(rank)]).recv(corner, all_but(rank));
        return builder.finish(0, 0);
    }
    let extra = cube.folded_rank_of(rank);
    if let Some(extra) = extra {
        builder.recv(extra, [output(extra)]);
    }
    let mut size = 1;
    while size < cube.nodes {
        let peer = rank ^ size;
        builder.send(peer, chunk_list(cube.subcube(rank, size), output));
        builder.recv(peer, chunk_list(cube.subcube(peer, size), output));
        size *= 2;
    }
    if let Some(extra) = extra {
        builder.send(extra, all_but(extra));
    }
    builder.finish(0, 0)
}
