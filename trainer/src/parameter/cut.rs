//! How a tensor is cut between the ranks of a tensor-parallel group.

use serde::{Deserialize, Serialize};

/// One rank's part of a dimension.
///
/// The dimension consists of `blocks` equal blocks (three for queries, keys and values in one matrix), each of them of
/// grains that stay together (the features of a head). Every part gets as many grains of every block as any other;
/// what a block has not is padding of zeros at the end of the last parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Which dimension of the tensor.
    pub dimension: usize,
    /// Its extent in the whole tensor.
    pub whole: usize,
    /// Blocks that are cut alike.
    pub blocks: usize,
    /// Elements that stay together.
    pub grain: usize,
    /// Number of parts.
    pub parts: usize,
    /// Which part this rank holds.
    pub part: usize,
}

impl Cut {
    /// Part `part` of `parts` of a dimension that may be cut anywhere.
    pub fn new(dimension: usize, whole: usize, parts: usize, part: usize) -> Self {
        Self { dimension, whole, blocks: 1, grain: 1, parts, part }
    }

    /// Whether a tensor of this shape can be cut so: what a file says need not be true.
    pub fn is_possible(&self, shape: &[usize]) -> bool {
        let Cut { dimension, whole, blocks, grain, parts, part } = *self;
        let fits = blocks.checked_mul(grain).is_some_and(|least| (1..=whole).contains(&least));
        shape.get(dimension) == Some(&whole) && fits && part < parts && parts <= PARTS_MAX
    }

    /// Elements of one block at this rank, padding included.
    pub fn share(&self) -> usize {
        (self.whole / self.blocks / self.grain).div_ceil(self.parts) * self.grain
    }

    /// Extent of this rank's part, padding included.
    pub fn local(&self) -> usize {
        self.blocks * self.share()
    }

    /// Where this part's element `index` is in the whole; none for padding.
    pub fn in_whole(&self, index: usize) -> Option<usize> {
        let (block, within) = (index / self.share(), index % self.share());
        let (at, extent) = (self.part * self.share() + within, self.whole / self.blocks);
        (at < extent).then_some(block * extent + at)
    }

    /// Where the whole's element `index` is in this part; none if it is in another.
    pub fn in_part(&self, index: usize) -> Option<usize> {
        let extent = self.whole / self.blocks;
        let (block, within) = (index / extent, index % extent);
        let at = within.checked_sub(self.part * self.share())?;
        (at < self.share()).then_some(block * self.share() + at)
    }

    /// Of every block, where this part of it begins here and in the whole, and how many elements of it are no padding.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (share, extent) = (self.share(), self.whole / self.blocks);
        let start = (self.part * share).min(extent);
        let count = share.min(extent - start);
        (0..self.blocks).map(move |block| (block * share, block * extent + start, count))
    }

    /// Share of all parts together that is padding, from 0 to 1.
    pub fn waste(&self) -> f64 {
        1.0 - self.whole as f64 / (self.local() * self.parts) as f64
    }
}

/// More parts than this nobody makes.
const PARTS_MAX: usize = 1 << 16;
