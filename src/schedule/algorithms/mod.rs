//! The collective algorithms, one family to a file.
//!
//! A row of the table is a constant [`Algorithm`], which holds plain functions of a [`GroupSpec`]
//! and a rank. To add an algorithm, write its file and list its rows in [`Algorithm::ALL`]. All of
//! them run with any number of ranks and any root.
//!
//! Costs are closed forms in the one-port model. In this model, a lane program can send one message
//! and receive one message in each round.
//!
//! [`Algorithm`]: super::Algorithm
//! [`Algorithm::ALL`]: super::Algorithm::ALL

pub mod barrier;
pub mod bidirectional_ring;
pub mod binomial;
pub mod bruck;
pub mod double_tree;
pub mod gather_scatter;
mod hypercube;
pub mod inplace_ring;
pub mod linear;
pub mod pairwise;
mod partial_sums;
pub mod pat;
pub mod rank_ordered;
pub mod recursive_doubling;
pub mod recursive_halving;
pub mod ring;
pub mod scan;
pub mod window_direct;
pub mod window_reduce;
pub mod zero_copy;

#[cfg(test)]
mod tests;

use super::{Chunk, GroupSpec, Program, ProgramBuilder, Rank, chunk_at, input, output};

impl GroupSpec {
    /// The rank `distance` above this one, around the circle of ranks.
    pub(crate) const fn next_by(&self, rank: Rank, distance: usize) -> Rank {
        (rank + distance) % self.ranks
    }

    /// The rank `distance` below this one, around the circle. `distance` is at most the group size.
    pub(crate) const fn prev_by(&self, rank: Rank, distance: usize) -> Rank {
        (rank + self.ranks - distance) % self.ranks
    }

    /// The distance of `rank` from the root, upward around the circle.
    pub(crate) const fn position(&self, rank: Rank) -> usize {
        self.prev_by(rank, self.root)
    }

    /// The rank at `position`, counted upward from the root.
    pub(crate) const fn rank_at(&self, position: usize) -> Rank {
        self.next_by(self.root, position)
    }

    /// Returns all ranks except `rank`, beginning with the next one, so that each rank contacts a
    /// different peer first.
    pub(crate) fn peers(self, rank: Rank) -> impl DoubleEndedIterator<Item = Rank> {
        (1..self.ranks).map(move |distance| self.next_by(rank, distance))
    }

    /// Number of ranks, as a number of the cost formulas.
    pub(crate) const fn size(&self) -> u64 {
        self.ranks as u64
    }
}

/// Accepts every spec, for algorithms that run with any.
fn any_group(_: &GroupSpec) -> bool {
    true
}

/// Chunks a share for algorithms that move whole shares.
fn one_chunk(_: &GroupSpec) -> usize {
    1
}

/// Chunks a share for algorithms that cut a share into one chunk a rank.
fn one_per_rank(spec: &GroupSpec) -> usize {
    spec.ranks
}

/// Returns the program for a single rank. The result is its input, which must still be scaled and
/// finished.
fn single_rank(rank: Rank, parts: usize) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for part in 0..parts {
        builder.reduce(vec![chunk_at(rank, input(part))], output(part), true);
    }
    builder.finish(0, 0)
}

/// The chunks that `chunk` makes of these indices.
fn chunk_list(indices: impl Iterator<Item = usize>, chunk: impl FnMut(usize) -> Chunk) -> Vec<Chunk> {
    indices.map(chunk).collect()
}

/// Rounds in which a number that doubles grows from one to `count`.
const fn ceil_log2(count: usize) -> u64 {
    count.next_power_of_two().trailing_zeros() as u64
}
