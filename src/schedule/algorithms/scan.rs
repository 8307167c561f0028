//! Prefix reductions, in which rank r gets the reduction of the inputs of ranks 0 to r.
//!
//! In an exclusive scan, rank r gets the reduction of the ranks below it, and rank 0 gets nothing.
//! Recursive doubling has the fewest rounds. A chain moves the fewest bytes, and long messages flow
//! through it slice by slice. Ranks that share memory read
//! the windows of the ranks below them.
//!
//! Source: Hillis, Steele, "Data parallel algorithms", CACM 29(12), 1986; Sanders, Träff, "Parallel
//! prefix (scan) algorithms for MPI", EuroPVM/MPI 2006.

use crate::schedule::algorithms::window_direct::one_exchange_complexity;
use crate::schedule::algorithms::{any_group, ceil_log2, one_chunk};
use crate::schedule::{
    Algorithm, ChunkRef, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program,
    ProgramBuilder, Rank, chunk_at, input, output, scratch, window,
};

const HILLIS_STEELE: &str = "Hillis, Steele: Data parallel algorithms, CACM 29(12), 1986";
const SANDERS_TRAEFF: &str = "Sanders, Träff: Parallel prefix (scan) algorithms for MPI, EuroPVM/MPI 2006";

/// Inclusive scan by recursive doubling.
pub const DOUBLING: Algorithm = Algorithm {
    name: "recursive_doubling",
    collective: Collective::Scan,
    summary: "partial sums go to the rank at double the distance each round: fewest rounds, for small data",
    citation: HILLIS_STEELE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &doubling,
    complexity: Some(&|spec| doubling_complexity(spec, 0)),
};

/// Exclusive scan by recursive doubling.
pub const EXCLUSIVE_DOUBLING: Algorithm = Algorithm {
    collective: Collective::ExScan,
    build: &exclusive_doubling,
    complexity: Some(&|spec| doubling_complexity(spec, if spec.ranks > 3 { 2 } else { 0 })),
    ..DOUBLING
};

/// Inclusive scan along a chain.
pub const CHAIN: Algorithm = Algorithm {
    name: "chain",
    collective: Collective::Scan,
    summary: "each rank adds its input and sends the sum on: fewest bytes, for long data and rank order",
    citation: SANDERS_TRAEFF,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::RankOrder,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &chain,
    complexity: Some(&|spec| chain_complexity(spec, if spec.ranks > 1 { 1 } else { 0 })),
};

/// Exclusive scan along a chain.
pub const EXCLUSIVE_CHAIN: Algorithm = Algorithm {
    collective: Collective::ExScan,
    build: &exclusive_chain,
    complexity: Some(&|spec| chain_complexity(spec, if spec.ranks > 2 { 2 } else { 0 })),
    ..CHAIN
};

/// Inclusive scan from windows.
pub const WINDOWED: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::Scan,
    summary: "every rank reduces the windows of the ranks below it: one hand-over, for small data",
    citation: SANDERS_TRAEFF,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &windowed,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() * (spec.size() - 1) / 2)),
};

/// Exclusive scan from windows.
pub const EXCLUSIVE_WINDOWED: Algorithm =
    Algorithm { collective: Collective::ExScan, build: &exclusive_windowed, ..WINDOWED };

fn doubling_complexity(spec: &GroupSpec, scratch_chunks: u64) -> Complexity {
    let chunks = distances(spec).map(|distance| (spec.ranks - distance) as u64).sum();
    Complexity { steps: ceil_log2(spec.ranks), chunks, scratch_chunks }
}

fn chain_complexity(spec: &GroupSpec, scratch_chunks: u64) -> Complexity {
    Complexity { steps: spec.size() - 1, chunks: spec.size() - 1, scratch_chunks }
}

/// The distances of the messages of each round.
fn distances(spec: &GroupSpec) -> impl Iterator<Item = usize> + use<> {
    let ranks = spec.ranks;
    (0..usize::BITS).map(|round| 1 << round).take_while(move |&distance| distance < ranks)
}

fn doubling(spec: &GroupSpec, rank: Rank) -> Program {
    let (mut builder, mut held) = (ProgramBuilder::new(rank), input(0));
    for distance in distances(spec) {
        if rank + distance < spec.ranks {
            builder.send(rank + distance, [held]);
        }
        if rank >= distance {
            builder.recv_reduce(rank - distance, [held], [output(0)], false);
            held = output(0);
        }
    }
    if rank == 0 {
        builder.copy(input(0), output(0));
    }
    builder.finish(0, 0)
}

/// Each rank keeps two sums: the sum of the ranks below it, and the sum that includes its own
/// input, which it sends.
fn exclusive_doubling(spec: &GroupSpec, rank: Rank) -> Program {
    let (mut builder, mut held, mut scratch_chunks) = (ProgramBuilder::new(rank), input(0), 0);
    let (arrived, sum) = (scratch(0), scratch(1));
    for distance in distances(spec) {
        let (is_first, sends_later) = (distance == 1, rank + 2 * distance < spec.ranks);
        if rank + distance < spec.ranks {
            builder.send(rank + distance, [held]);
        }
        match rank.checked_sub(distance) {
            None => {}
            // A rank that sends nothing later needs no sum with its own input.
            Some(from) if !sends_later && is_first => {
                builder.recv(from, [output(0)]);
            }
            Some(from) if !sends_later => {
                builder.recv_reduce(from, [output(0)], [output(0)], false);
            }
            Some(from) => {
                scratch_chunks = 2;
                let own_place = |chunk| chunk_at(rank, chunk);
                builder.recv(from, [arrived]).reduce(vec![own_place(arrived), own_place(held)], sum, false);
                held = sum;
                match is_first {
                    true => builder.copy(arrived, output(0)),
                    false => builder.reduce(vec![own_place(arrived), own_place(output(0))], output(0), false),
                };
            }
        }
    }
    builder.finish(scratch_chunks, 0)
}

fn chain(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank == 0 {
        builder.copy(input(0), output(0));
    } else {
        // The sum of the lower ranks comes first, because the chain promises rank order.
        let operands = [scratch(0), input(0)].map(|chunk| chunk_at(rank, chunk));
        builder.recv(rank - 1, [scratch(0)]).reduce(operands.to_vec(), output(0), false);
    }
    if rank + 1 < spec.ranks {
        builder.send(rank + 1, [output(0)]);
    }
    builder.finish(usize::from(rank > 0), 0)
}

fn exclusive_chain(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    let is_last = rank + 1 == spec.ranks;
    if rank == 0 && !is_last {
        builder.send(1, [input(0)]);
    }
    if rank == 0 {
        return builder.finish(0, 0);
    }
    if is_last {
        builder.recv(rank - 1, [output(0)]);
        return builder.finish(0, 0);
    }
    // The order of the operands is that of the ranks, as in the inclusive chain.
    let operands = [scratch(0), input(0)].map(|chunk| chunk_at(rank, chunk));
    builder.recv(rank - 1, [scratch(0)]).reduce(operands.to_vec(), scratch(1), false);
    // The next rank waits for the sum, so it leaves before the copy.
    builder.send(rank + 1, [scratch(1)]).copy(scratch(0), output(0));
    builder.finish(2, 0)
}

fn windowed(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = stage_for_higher(spec, rank);
    if rank == 0 {
        builder.copy(input(0), output(0));
    } else {
        let own_place = chunk_at(rank, input(0));
        builder.reduce(lower_windows(rank).chain([own_place]).collect(), output(0), false);
    }
    builder.finish(0, usize::from(rank + 1 < spec.ranks))
}

fn exclusive_windowed(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = stage_for_higher(spec, rank);
    match rank {
        0 => {}
        1 => {
            builder.get(0, window(0), output(0));
        }
        _ => {
            builder.reduce(lower_windows(rank).collect(), output(0), false);
        }
    }
    builder.finish(0, usize::from(rank + 1 < spec.ranks))
}

/// Begins a program, in which the rank writes its input for the ranks above it and waits for the
/// ranks below it.
fn stage_for_higher(spec: &GroupSpec, rank: Rank) -> ProgramBuilder {
    let mut builder = ProgramBuilder::new(rank);
    if rank + 1 < spec.ranks {
        builder.copy(input(0), window(0)).signal();
    }
    for lower in 0..rank {
        builder.wait(lower, 1);
    }
    builder
}

/// The windows of the ranks below `rank`, in rank order.
fn lower_windows(rank: Rank) -> impl Iterator<Item = ChunkRef> {
    (0..rank).map(|lower| chunk_at(lower, window(0)))
}
