//! Ranks that share sequences: a ring of groups of neighbors. The members of a group exchange their
//! positions for heads, and keys and values go round the ring.
//!
//! Source: Fang, Zhao, "USP: a unified sequence parallelism approach for long context generative
//! AI", 2024. With groups of one rank it is ring attention, and with one group Ulysses.

use super::SequenceChunk;
use std::ops::Range;
use unisono::Communicator;

/// Division of sequences over ranks.
#[derive(Clone)]
pub(super) struct SharedSequence {
    pub(super) ranks: Communicator,
    /// Number of neighbors that exchange heads.
    pub(super) group_size: usize,
    /// Number of sequences of the micro-batch.
    pub(super) sequences: usize,
    /// Rows of a sequence on each rank.
    pub(super) length: usize,
    /// This rank's chunk of each sequence.
    pub(super) chunk: SequenceChunk,
}

impl SharedSequence {
    /// Returns the number of groups in the ring.
    pub(super) fn ring_size(&self) -> usize {
        self.ranks.size() / self.group_size
    }

    /// Returns the number of this rank's group in the ring.
    pub(super) fn own_group(&self) -> usize {
        self.ranks.rank() / self.group_size
    }

    /// Returns the ranks of a group.
    pub(super) fn members(&self, group: usize) -> Range<usize> {
        group * self.group_size..(group + 1) * self.group_size
    }

    /// Returns the rows of a sequence on all ranks of a group.
    pub(super) fn group_length(&self) -> usize {
        self.group_size * self.length
    }

    /// Returns the next and the previous rank of this rank's ring.
    pub(super) fn ring_neighbors(&self) -> [usize; 2] {
        let (rank, count) = (self.ranks.rank(), self.ranks.size());
        [(rank + self.group_size) % count, (rank + count - self.group_size) % count]
    }

    /// Returns the positions of a rank's rows of a sequence, ascending.
    pub(super) fn positions_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.chunk.positions_of(rank, self.length)
    }

    /// Returns the positions of a group's rows of a sequence, ascending.
    pub(super) fn positions(&self, group: usize) -> Vec<usize> {
        let mut positions: Vec<usize> =
            self.members(group).flat_map(|rank| self.positions_of(rank)).collect();
        positions.sort_unstable();
        positions
    }

    /// Returns how many keys of a group each row of this rank's group attends to: with `is_causal`
    /// those that are not later.
    pub(super) fn visible(&self, is_causal: bool, group: usize) -> Vec<usize> {
        if !is_causal {
            return vec![self.group_length(); self.group_length()];
        }
        let (queries, keys) = (self.positions(self.own_group()), self.positions(group));
        queries.into_iter().map(|query| keys.partition_point(|&key| key <= query)).collect()
    }
}
