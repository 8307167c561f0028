//! Sharding of a tensor over a tensor parallel group.

use serde::{Deserialize, Serialize};

/// One rank's shard of a dimension.
///
/// The dimension consists of `block_count` equal blocks, such as queries, keys and values in one
/// matrix. Each block consists of groups of `granularity` elements that stay together, such as the
/// features of a head. Every shard has equally many groups of every block. Missing groups are zero
/// padding at the end of the last shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSpec {
    /// Sharded dimension of the tensor.
    pub dim: usize,
    /// Size of the whole dimension.
    pub global_size: usize,
    /// Number of blocks that are sharded alike.
    pub block_count: usize,
    /// Number of elements that stay together.
    pub granularity: usize,
    /// Number of shards.
    pub shard_count: usize,
    /// Index of this rank's shard.
    pub shard_index: usize,
}

impl ShardSpec {
    /// Returns shard `part` of `parts` of a dimension that may be split anywhere.
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

    /// Returns true if a tensor of this shape can be sharded like this. Values from a file may be
    /// invalid.
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

    /// Returns the size of this rank's shard of one block, including padding.
    pub fn block_shard_size(&self) -> usize {
        (self.global_size / self.block_count / self.granularity).div_ceil(self.shard_count) * self.granularity
    }

    /// Returns the size of this rank's shard, including padding.
    pub fn local_size(&self) -> usize {
        self.block_count * self.block_shard_size()
    }

    /// Returns the index in the whole dimension of this shard's index; `None` for padding.
    pub fn global_index(&self, index: usize) -> Option<usize> {
        let (block, within) = (index / self.block_shard_size(), index % self.block_shard_size());
        let (at, extent) =
            (self.shard_index * self.block_shard_size() + within, self.global_size / self.block_count);
        (at < extent).then_some(block * extent + at)
    }

    /// Returns this shard's index of `index` of the whole dimension; `None` if another shard has
    /// it.
    pub fn local_index(&self, index: usize) -> Option<usize> {
        let extent = self.global_size / self.block_count;
        let (block, within) = (index / extent, index % extent);
        let at = within.checked_sub(self.shard_index * self.block_shard_size())?;
        (at < self.block_shard_size()).then_some(block * self.block_shard_size() + at)
    }

    /// Returns for every block the start in this shard, the start in the whole dimension, and the
    /// length without padding.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (share, extent) = (self.block_shard_size(), self.global_size / self.block_count);
        let start = (self.shard_index * share).min(extent);
        let count = share.min(extent - start);
        (0..self.block_count).map(move |block| (block * share, block * extent + start, count))
    }

    /// Returns the fraction of all shards together that is padding.
    pub fn padding_fraction(&self) -> f64 {
        1.0 - self.global_size as f64 / (self.local_size() * self.shard_count) as f64
    }
}

/// Limit on the number of shards, beyond any real group.
const MAX_SHARDS: usize = 1 << 16;
