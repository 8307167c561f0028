//! The ranks as corners of a hypercube. If their number is no power of two, there are extra ranks.

use crate::schedule::{GroupSpec, Rank};

/// The largest cube among the ranks, and the extra ranks that are left over.
///
/// One corner serves each extra rank. The number of the corner is that of the extra rank without
/// its highest bit.
pub(super) struct Hypercube {
    ranks: usize,
    pub(super) nodes: usize,
}

impl Hypercube {
    pub(super) fn new(spec: &GroupSpec) -> Self {
        Self { ranks: spec.ranks, nodes: 1 << spec.ranks.ilog2() }
    }

    /// Returns the corner that serves an extra rank. Returns `None` if `rank` is a corner.
    pub(super) fn folds_onto(&self, rank: Rank) -> Option<Rank> {
        rank.checked_sub(self.nodes)
    }

    /// The extra rank that this corner serves.
    pub(super) fn folded_rank_of(&self, corner: Rank) -> Option<Rank> {
        Some(corner + self.nodes).filter(|&extra| extra < self.ranks)
    }

    /// Number of extra ranks.
    pub(super) fn folded_ranks(&self) -> usize {
        self.ranks - self.nodes
    }

    /// The ranks on the face of `size` corners with `corner` in it, and the extra ranks they serve.
    pub(super) fn subcube(&self, corner: Rank, size: usize) -> impl Iterator<Item = Rank> + use<> {
        let first = corner & !(size - 1);
        let end = (first + size + self.nodes).min(self.ranks);
        (first..first + size).chain(first + self.nodes..end)
    }

    /// Rounds of an exchange along all dimensions.
    pub(super) fn dimensions(&self) -> u64 {
        u64::from(self.nodes.ilog2())
    }

    /// Rounds in which extra ranks hand in their data and get the result.
    pub(super) fn fold_rounds(&self) -> u64 {
        if self.folded_ranks() > 0 { 2 } else { 0 }
    }
}
