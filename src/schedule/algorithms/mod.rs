//! The algorithms, one family to a file.
//!
//! A row is a constant [`Algorithm`]: plain functions of a [`Spec`] and a rank.
//! To add one, write its file and list its rows in [`Algorithm::ALL`]. All of
//! them run with any number of ranks and any root.
//!
//! Costs are closed forms in the one-port model: in one round a strand of a
//! rank may send one message and receive one.
//!
//! [`Algorithm`]: super::Algorithm
//! [`Algorithm::ALL`]: super::Algorithm::ALL

pub mod barrier;
pub mod bidirectional;
pub mod binomial;
pub mod bruck;
pub mod direct;
pub mod direct_reduce;
pub mod double_tree;
pub mod doubling;
pub mod gather_scatter;
pub mod halving;
pub mod linear;
pub mod ordered;
pub mod pairwise;
pub mod pat;
pub mod relay;
pub mod ring;
pub mod zero_copy;

mod cube;
mod partials;
#[cfg(test)]
mod tests;

use super::{Block, Program, ProgramBuilder, Rank, Spec, at, input, output};

impl Spec {
    /// The rank `distance` places up the circle of ranks.
    pub(crate) const fn after(&self, rank: Rank, distance: usize) -> Rank {
        (rank + distance) % self.ranks
    }

    /// The rank `distance` places down the circle of ranks; at most once around.
    pub(crate) const fn before(&self, rank: Rank, distance: usize) -> Rank {
        (rank + self.ranks - distance) % self.ranks
    }

    /// How far up the circle from the root `rank` sits.
    pub(crate) const fn position(&self, rank: Rank) -> usize {
        self.before(rank, self.root)
    }

    /// The rank that sits `position` places up from the root.
    pub(crate) const fn seated(&self, position: usize) -> Rank {
        self.after(self.root, position)
    }

    /// All ranks but `rank`, from its next one up, so that they do not all turn to the same peer first.
    pub(crate) fn peers(self, rank: Rank) -> impl DoubleEndedIterator<Item = Rank> {
        (1..self.ranks).map(move |distance| self.after(rank, distance))
    }

    /// Number of ranks, as costs count.
    pub(crate) const fn count(&self) -> u64 {
        self.ranks as u64
    }
}

/// For algorithms that run with any spec.
fn any(_: &Spec) -> bool {
    true
}

/// For algorithms that move whole shares.
fn whole(_: &Spec) -> usize {
    1
}

/// For algorithms that cut a share in one block for each rank.
fn one_per_rank(spec: &Spec) -> usize {
    spec.ranks
}

/// The reduction of a single rank: its own input, which must still be scaled and finished.
fn alone(rank: Rank, parts: usize) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for part in 0..parts {
        builder.reduce(vec![at(rank, input(part))], output(part), true);
    }
    builder.finish(0, 0)
}

/// The blocks that `block` makes of these indices.
fn blocks(indices: impl Iterator<Item = usize>, block: impl FnMut(usize) -> Block) -> Vec<Block> {
    indices.map(block).collect()
}

/// Rounds in which something that doubles grows from one to `count`.
const fn rounds_of_doubling(count: usize) -> u64 {
    count.next_power_of_two().trailing_zeros() as u64
}
