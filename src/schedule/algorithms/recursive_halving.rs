//! Recursive halving, in which neighbors in every dimension of a hypercube divide the remaining
//! sums between them.
//!
//! Each round halves the bytes, so a reduce-scatter sends less than one share from each rank, in a
//! logarithmic number of rounds. Ranks beyond the largest power of two send their data to a corner
//! first and receive the result last. The algorithm is used for shares of medium size.
//!
//! Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.

use crate::schedule::algorithms::hypercube::Hypercube;
use crate::schedule::algorithms::partial_sums::PartialSums;
use crate::schedule::algorithms::{any_group, chunk_list, one_chunk, single_rank};
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output,
};

const SOURCE: &str = "Rabenseifner: Optimization of collective reduction operations, ICCS 2004";

/// All-reduce: recursive halving, then recursive doubling.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "rabenseifner",
    collective: Collective::AllReduce,
    summary: "halves are summed, then exchanged: logarithmic at fewest bytes, for medium data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|spec| Hypercube::new(spec).nodes,
    build: &all_reduce,
    complexity: Some(&|spec| {
        let cube = Hypercube::new(spec);
        let (corners, extras) = (cube.nodes as u64, cube.folded_ranks() as u64);
        let steps = 2 * cube.dimensions() + cube.fold_rounds();
        Complexity { steps, chunks: 2 * corners * (corners - 1 + extras), scratch_chunks: 0 }
    }),
};

/// Reduce-scatter by recursive halving.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "recursive_halving",
    collective: Collective::ReduceScatter,
    summary: "neighbors in a hypercube divide the remaining sums: fewest rounds, at powers of two",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| {
        let cube = Hypercube::new(spec);
        let steps = cube.dimensions() + cube.fold_rounds();
        let chunks = spec.size() * (spec.size() - 1) + cube.folded_ranks() as u64;
        // A corner that serves an extra rank sums all chunks, and other corners sum half of them.
        // The chunk of this rank is summed in the output.
        let sums = if cube.folded_ranks() > 0 { spec.size() } else { spec.size() / 2 };
        Complexity { steps, chunks, scratch_chunks: sums.saturating_sub(1) }
    }),
};

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (cube, mut builder) = (Hypercube::new(spec), ProgramBuilder::new(rank));
    let chunks_of = |space: fn(usize) -> Chunk| chunk_list(0..cube.nodes, space);
    if let Some(corner) = cube.folds_onto(rank) {
        builder.send(corner, chunks_of(input)).recv(corner, chunks_of(output));
        return builder.finish(0, 0);
    }
    let mut held: fn(usize) -> Chunk = input;
    if let Some(extra) = cube.folded_rank_of(rank) {
        builder.recv_reduce(extra, chunks_of(input), chunks_of(output), false);
        held = output;
    }
    let part = |corner: Rank, size: usize| (corner & !(size - 1)..).take(size);
    let mut size = cube.nodes / 2;
    while size > 0 {
        let peer = rank ^ size;
        builder.send(peer, chunk_list(part(peer, size), held));
        builder.recv_reduce(
            peer,
            chunk_list(part(rank, size), held),
            chunk_list(part(rank, size), output),
            size == 1,
        );
        held = output;
        size /= 2;
    }
    size = 1;
    while size < cube.nodes {
        let peer = rank ^ size;
        builder
            .send(peer, chunk_list(part(rank, size), output))
            .recv(peer, chunk_list(part(peer, size), output));
        size *= 2;
    }
    if let Some(extra) = cube.folded_rank_of(rank) {
        builder.send(extra, chunks_of(output));
    }
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (cube, mut builder) = (Hypercube::new(spec), ProgramBuilder::new(rank));
    let inputs = chunk_list(0..spec.ranks, input);
    if let Some(corner) = cube.folds_onto(rank) {
        builder.send(corner, inputs).recv(corner, [output(0)]);
        return builder.finish(0, 0);
    }
    let mut partials = PartialSums::new(inputs, rank, output(0));
    if let Some(extra) = cube.folded_rank_of(rank) {
        let (operands, sums): (Vec<_>, Vec<_>) = (0..spec.ranks).map(|chunk| partials.add(chunk)).unzip();
        builder.recv_reduce(extra, operands, sums, false);
    }
    let mut size = cube.nodes / 2;
    while size > 0 {
        let peer = rank ^ size;
        builder.send(peer, chunk_list(cube.subcube(peer, size), |chunk| partials.take(chunk)));
        let (operands, sums): (Vec<_>, Vec<_>) =
            cube.subcube(rank, size).map(|chunk| partials.add(chunk)).unzip();
        builder.recv_reduce(peer, operands, sums, size == 1);
        size /= 2;
    }
    if let Some(extra) = cube.folded_rank_of(rank) {
        builder.send(extra, [partials.take(extra)]);
    }
    builder.finish(partials.scratch_chunks(), 0)
}
