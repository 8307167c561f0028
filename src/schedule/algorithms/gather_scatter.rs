//! Gather and scatter, either direct or along a binomial tree.
//!
//! In the direct form, the root exchanges one message with every other rank. Along the tree, inner
//! ranks pass on the chunks of their subtrees. So the root has only a logarithmic number of
//! messages, but more bytes are sent in total. The tree is used for small shares.
//!
//! Source: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
//! and experience", CCPE 19(13), 2007.

use super::binomial::{SOURCE, children, parent, subtree};
use super::{any_group, ceil_log2, chunk_list, one_chunk};
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output, scratch,
};

/// Gather from the leaves to the root of a binomial tree.
pub const GATHER: Algorithm = Algorithm {
    name: "binomial",
    collective: Collective::Gather,
    summary: "chunks are packed on their way to the root of a tree: fewest rounds, for small data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &gather,
    complexity: Some(&tree_complexity),
};

/// Scatter from the root to the leaves of a binomial tree.
pub const SCATTER: Algorithm = Algorithm {
    name: "binomial",
    collective: Collective::Scatter,
    summary: "packed chunks are divided on their way from the root of a tree: fewest rounds, for small data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &scatter,
    complexity: Some(&tree_complexity),
};

/// Gather in which every rank sends to the root.
pub const GATHER_LINEAR: Algorithm = Algorithm {
    name: "linear",
    collective: Collective::Gather,
    summary: "every rank sends to the root: every chunk moves once, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &gather_linear,
    complexity: Some(&linear_complexity),
};

/// Scatter in which the root sends to all.
pub const SCATTER_LINEAR: Algorithm = Algorithm {
    name: "linear",
    collective: Collective::Scatter,
    summary: "the root sends to all: every chunk moves once, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &scatter_linear,
    complexity: Some(&linear_complexity),
};

fn linear_complexity(spec: &GroupSpec) -> Complexity {
    Complexity { steps: spec.size() - 1, chunks: spec.size() - 1, scratch_chunks: 0 }
}

/// A chunk makes one hop for each set bit of its position. The largest subtree below the root is
/// that of its last child, which may be cut short by the number of ranks, or of the child before.
fn tree_complexity(spec: &GroupSpec) -> Complexity {
    let half = spec.size().next_power_of_two() / 2;
    let scratch_chunks = (spec.size() - half).max(half / 2).saturating_sub(1);
    Complexity {
        steps: ceil_log2(spec.ranks),
        chunks: (0..spec.size()).map(|position| u64::from(position.count_ones())).sum(),
        scratch_chunks: if spec.ranks == 1 { 0 } else { scratch_chunks },
    }
}

/// Returns the place of the chunk of a `descendant` at the rank at `position`. At the root, this is
/// in `buffer`.
fn chunk_location(spec: &GroupSpec, position: usize, descendant: usize, buffer: fn(usize) -> Chunk) -> Chunk {
    match position {
        0 => buffer(spec.rank_at(descendant)),
        _ => scratch(descendant - position - 1),
    }
}

/// Scratch chunks of the rank at `position`, one for each rank of its subtree that it passes on.
fn scratch_chunks(spec: &GroupSpec, position: usize) -> usize {
    if position == 0 { 0 } else { subtree(position, spec.ranks).len() - 1 }
}

fn gather(spec: &GroupSpec, rank: Rank) -> Program {
    let (mut builder, position) = (ProgramBuilder::new(rank), spec.position(rank));
    if position == 0 {
        builder.copy(input(0), output(rank));
    }
    let chunks = |top| {
        chunk_list(subtree(top, spec.ranks), |descendant| chunk_location(spec, position, descendant, output))
    };
    for child in children(position, spec.ranks) {
        builder.recv(spec.rank_at(child), chunks(child));
    }
    if position > 0 {
        let mut packed = vec![input(0)];
        packed.extend((0..scratch_chunks(spec, position)).map(scratch));
        builder.send(spec.rank_at(parent(position)), packed);
    }
    builder.finish(scratch_chunks(spec, position), 0)
}

fn scatter(spec: &GroupSpec, rank: Rank) -> Program {
    let (mut builder, position) = (ProgramBuilder::new(rank), spec.position(rank));
    if position > 0 {
        let mut packed = vec![output(0)];
        packed.extend((0..scratch_chunks(spec, position)).map(scratch));
        builder.recv(spec.rank_at(parent(position)), packed);
    }
    let chunks = |top| {
        chunk_list(subtree(top, spec.ranks), |descendant| chunk_location(spec, position, descendant, input))
    };
    // The largest subtree has the longest way to its leaves, so it is served first.
    for child in children(position, spec.ranks).rev() {
        builder.send(spec.rank_at(child), chunks(child));
    }
    if position == 0 {
        builder.copy(input(rank), output(0));
    }
    builder.finish(scratch_chunks(spec, position), 0)
}

fn gather_linear(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.send(spec.root, [input(0)]);
        return builder.finish(0, 0);
    }
    builder.copy(input(0), output(rank));
    for sender in spec.peers(rank) {
        builder.recv(sender, [output(sender)]);
    }
    builder.finish(0, 0)
}

fn scatter_linear(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.recv(spec.root, [output(0)]);
        return builder.finish(0, 0);
    }
    for receiver in spec.peers(rank) {
        builder.send(receiver, [input(receiver)]);
    }
    // The other ranks wait for their messages, so the root's copy for itself comes last.
    builder.copy(input(rank), output(0));
    builder.finish(0, 0)
}
