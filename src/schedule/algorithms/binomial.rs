//! Binomial trees, in which the number of ranks that have the data doubles every round.
//!
//! A position's parent is the position with its lowest set bit cleared. The root is position 0.
//! Every message carries the whole share, and the number of rounds is the logarithm of the number
//! of ranks. The trees are used for small shares.
//!
//! Source: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
//! and experience", CCPE 19(13), 2007.

use super::{any_group, ceil_log2, one_chunk, single_rank};
use crate::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    input, output, scratch,
};
use std::ops::Range;

pub(super) const SOURCE: &str =
    "Chan, Heimlich, Purkayastha, van de Geijn: Collective communication, CCPE 2007";

/// Broadcast from the root to the leaves of a binomial tree.
pub const BROADCAST: Algorithm = Algorithm {
    name: "binomial",
    collective: Collective::Broadcast,
    summary: "every rank with the data sends it to one more each round: fewest rounds, for small data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &broadcast,
    complexity: Some(&|spec| Complexity {
        steps: ceil_log2(spec.ranks),
        chunks: spec.size() - 1,
        scratch_chunks: 0,
    }),
};

/// Reduce from the leaves to the root of a binomial tree.
pub const REDUCE: Algorithm = Algorithm {
    name: "binomial",
    collective: Collective::Reduce,
    summary: "every round adds half of the sums to the other half: fewest rounds, for small data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce,
    complexity: Some(&|spec| Complexity {
        steps: ceil_log2(spec.ranks),
        chunks: spec.size() - 1,
        scratch_chunks: u64::from(spec.ranks > 3),
    }),
};

/// The positions of the subtree at `position`, itself included.
pub(super) fn subtree(position: usize, ranks: usize) -> Range<usize> {
    let reach = if position == 0 { ranks } else { position & position.wrapping_neg() };
    position..ranks.min(position + reach)
}

/// The children of `position`, the smallest subtree first.
pub(super) fn children(position: usize, ranks: usize) -> impl DoubleEndedIterator<Item = usize> {
    let reach = subtree(position, ranks).len();
    (0..ceil_log2(reach)).map(move |bit| position + (1 << bit))
}

/// The parent of a `position` other than the root's.
pub(super) const fn parent(position: usize) -> usize {
    position & (position - 1)
}

fn broadcast(spec: &GroupSpec, rank: Rank) -> Program {
    let (mut builder, position) = (ProgramBuilder::new(rank), spec.position(rank));
    let held = if position == 0 { input(0) } else { output(0) };
    if position > 0 {
        builder.recv(spec.rank_at(parent(position)), [held]);
    }
    // The largest subtree has the longest way to its leaves, so it is served first.
    for child in children(position, spec.ranks).rev() {
        builder.send(spec.rank_at(child), [held]);
    }
    if position == 0 {
        // The children wait for their messages, so the root's copy for itself comes last.
        builder.copy(input(0), output(0));
    }
    builder.finish(0, 0)
}

fn reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (mut builder, position) = (ProgramBuilder::new(rank), spec.position(rank));
    let sum = if position == 0 { output(0) } else { scratch(0) };
    let mut held = input(0);
    // The smallest subtree has the shortest way to its sum, so it is awaited first.
    let mut children = children(position, spec.ranks).peekable();
    while let Some(child) = children.next() {
        let complete = position == 0 && children.peek().is_none();
        builder.recv_reduce(spec.rank_at(child), [held], [sum], complete);
        held = sum;
    }
    if position > 0 {
        builder.send(spec.rank_at(parent(position)), [held]);
    }
    builder.finish(usize::from(held == scratch(0)), 0)
}
