//! The ranks as corners of a hypercube.

use crate::schedule::{GroupSpec, Rank};

/// The largest cube among the ranks, and the extra ranks that are left over. Each extra leans on
/// the corner it would share a number with, had it one bit less.
pub(super) struct Hypercube {
    ranks: usize,
    pub(super) nodes: usize,
}

impl Hypercube {
    pub(super) fn new(spec: &GroupSpec) -> Self {
        Self { ranks: spec.ranks, nodes: 1 << spec.ranks.ilog2() }
    }

    /// Whom an extra rank leans on; none if `rank` is a corner.
    pub(super) fn folds_onto(&self, rank: Rank) -> Option<Rank> {
        rank.checked_sub(self.nodes)
    }

    /// The extra rank that leans on this corner.
    pub(super) fn folded_rank_of(&self, corner: Rank) -> Option<Rank> {
        Some(corner + self.nodes).filter(|&extra| extra < self.ranks)
    }

    /// Number of extra ranks.
    pub(super) fn folded_ranks(&self) -> usize {
        self.ranks - self.nodes
    }

    /// The ranks on the face of `size` corners that holds `corner`, with those that lean on them.
    pub(super) fn subcube(&self, corner: Rank, size: usize) -> impl Iterator<Item = Rank> + use<> {
        let first = corner & !(size - 1);
        let end = (first + size + self.nodes).min(self.ranks);
        (first..first + size).chain(first + self.nodes..end)
    }

    /// Rounds that any exchange along all dimensions takes.
    pub(super) fn dimensions(&self) -> u64 {
        u64::from(self.nodes.ilog2())
    }

    /// Rounds for the extra ranks to hand in their data and be told the result.
    pub(super) fn fold_rounds(&self) -> u64 {
        if self.folded_ranks() > 0 { 2 } else { 0 }
    }
}
