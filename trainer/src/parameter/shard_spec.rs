//! How a tensor is cut between the ranks of a tensor-parallel group.

use serde::{Deserialize, Serialize};

/// One rank's part of a dimension.
///
/// The dimension consists of `blocks` equal blocks (three for queries, keys and values in one matrix), each of them of
/// grains that stay together (the features of a head). Every part gets as many grains of every block as any other;
/// what a block has not is padding of zeros at the end of the last parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSpec {
    /// Which dimension of the tensor.
    pub dim: usize,
    /// Its extent in the whole tensor.
    pub global_size: usize,
    /// Blocks that are cut alike.
    pub block_count: usize,
    /// Elements that stay together.
    pub granularity: usize,
    /// Number of parts.
    pub shard_count: usize,
    /// Which part this rank holds.
    pub shard_index: usize,
}

impl ShardSpec {
    /// Part `part` of `parts` of a dimension that may be cut anywhere.
    pub fn new(dimension: usize, whole: usize, parts: usize, part: usize) -> Self {
        Self {
            dim: dimension,
            global_size: whole,
            block_count: 1,
            granularity: 1,
            shard_count: parts,
            shard_index: part,
        }
    }

    /// Whether a tensor of this shape can be cut so: what a file says need not be true.
    pub fn is_valid(&self, shape: &[usize]) -> bool {
        let ShardSpec {
            dim: dimension,
            global_size: whole,
            block_count: blocks,
            granularity: grain,
            shard_count: parts,
            shard_index: part,
        } = *self;
        let fits = blocks.checked_mul(grain).is_some_and(|least| (1..=whole).contains(&least));
        shape.get(dimension) == Some(&whole) && fits && part < parts && parts <= MAX_SHARDS
    }

    /// Elements of one block at this rank, padding included.
    pub fn block_shard_size(&self) -> usize {
        (self.global_size / self.block_count / self.granularity).div_ceil(self.shard_count) * self.granularity
    }

    /// Extent of this rank's part, padding included.
    pub fn local_size(&self) -> usize {
        self.block_count * self.block_shard_size()
    }

    /// Where this part's element `index` is in the whole; none for padding.
    pub fn global_index(&self, index: usize) -> Option<usize> {
        let (block, within) = (index / self.block_shard_size(), index % self.block_shard_size());
        let (at, extent) =
            (self.shard_index * self.block_shard_size() + within, self.global_size / self.block_count);
        (at < extent).then_some(block * extent + at)
    }

    /// Where the whole's element `index` is in this part; none if it is in another.
    pub fn local_index(&self, index: usize) -> Option<usize> {
        let extent = self.global_size / self.block_count;
        let (block, within) = (index / extent, index % extent);
        let at = within.checked_sub(self.shard_index * self.block_shard_size())?;
        (at < self.block_shard_size()).then_some(block * self.block_shard_size() + at)
    }

    /// Of every block, where this part of it begins here and in the whole, and how many elements of it are no padding.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (share, extent) = (self.block_shard_size(), self.global_size / self.block_count);
        let start = (self.shard_index * share).min(extent);
        let count = share.min(extent - start);
        (0..self.block_count).map(move |block| (block * share, block * extent + start, count))
    }

    /// Share of all parts together that is padding, from 0 to 1.
    pub fn padding_fraction(&self) -> f64 {
        1.0 - self.global_size as f64 / (self.local_size() * self.shard_count) as f64
    }
}

/// More parts than this nobody makes.
const MAX_SHARDS: usize = 1 << 16;
