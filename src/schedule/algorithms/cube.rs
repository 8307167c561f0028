//! The ranks as corners of a hypercube.

use crate::schedule::{Rank, Spec};

/// The largest cube among the ranks, and the extra ranks that are left over. Each extra leans on
/// the corner it would share a number with, had it one bit less.
pub(super) struct Cube {
    ranks: usize,
    pub(super) corners: usize,
}

impl Cube {
    pub(super) fn new(spec: &Spec) -> Self {
        Self { ranks: spec.ranks, corners: 1 << spec.ranks.ilog2() }
    }

    /// Whom an extra rank leans on; none if `rank` is a corner.
    pub(super) fn corner_of(&self, rank: Rank) -> Option<Rank> {
        rank.checked_sub(self.corners)
    }

    /// The extra rank that leans on this corner.
    pub(super) fn extra_of(&self, corner: Rank) -> Option<Rank> {
        Some(corner + self.corners).filter(|&extra| extra < self.ranks)
    }

    /// Number of extra ranks.
    pub(super) fn extras(&self) -> usize {
        self.ranks - self.corners
    }

    /// The ranks on the face of `size` corners that holds `corner`, with those that lean on them.
    pub(super) fn face(&self, corner: Rank, size: usize) -> impl Iterator<Item = Rank> + use<> {
        let first = corner & !(size - 1);
        let end = (first + size + self.corners).min(self.ranks);
        (first..first + size).chain(first + self.corners..end)
    }

    /// Rounds that any exchange along all dimensions takes.
    pub(super) fn dimensions(&self) -> u64 {
        u64::from(self.corners.ilog2())
    }

    /// Rounds for the extra ranks to hand in their data and be told the result.
    pub(super) fn detour(&self) -> u64 {
        if self.extras() > 0 { 2 } else { 0 }
    }
}
