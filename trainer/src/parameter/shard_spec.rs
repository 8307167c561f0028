//! Sharding of a tensor over a tensor parallel group.

use serde::{Deserialize, Serialize};

/// One rank's shard of a dimension.
///
/// The dimension consists of `block_count` blocks, such as queries, keys and values in one matrix.
/// The first block may be larger than the others, which are equal. Each block consists of equally
/// many groups of elements that stay together, such as the features of a head. Every shard has
/// equally many groups of every block. Missing groups are zero padding at the end of the last
/// shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSpec {
    /// Sharded dimension of the tensor.
    pub dim: usize,
    /// Size of the whole dimension.
    pub global_size: usize,
    /// Number of blocks that are sharded alike.
    pub block_count: usize,
    /// Size of the first block relative to another: query heads per key head.
    #[serde(default = "equal_blocks")]
    pub first_block_ratio: usize,
    /// Number of elements that stay together; `first_block_ratio` times as many in the first block.
    pub granularity: usize,
    /// Number of shards.
    pub shard_count: usize,
    /// Index of this rank's shard.
    pub shard_index: usize,
}

impl ShardSpec {
    /// Returns shard `part` of `parts` of a dimension that may be split anywhere.
    pub fn new(dimension: usize, size: usize, parts: usize, part: usize) -> Self {
        Self {
            dim: dimension,
            global_size: size,
            block_count: 1,
            first_block_ratio: 1,
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
            global_size: size,
            block_count: blocks,
            first_block_ratio: ratio,
            granularity: grain,
            shard_count: parts,
            shard_index: part,
        } = *self;
        // Files have such specifications, and damaged ones have any numbers.
        let extents = blocks.checked_sub(1).and_then(|others| others.checked_add(ratio));
        let least = extents.filter(|_| ratio > 0).and_then(|extents| extents.checked_mul(grain));
        let fits = least.is_some_and(|least| (1..=size).contains(&least));
        shape.get(dimension) == Some(&size) && fits && part < parts && parts <= MAX_SHARDS
    }

    /// Returns the size of all blocks in sizes of a block other than the first.
    fn extent_count(&self) -> usize {
        self.block_count - 1 + self.first_block_ratio
    }

    /// Returns the size of a block other than the first, in the whole dimension.
    fn block_size(&self) -> usize {
        self.global_size / self.extent_count()
    }

    /// Returns the size of this rank's shard of a block other than the first, including padding.
    fn block_shard_size(&self) -> usize {
        (self.block_size() / self.granularity).div_ceil(self.shard_count) * self.granularity
    }

    /// Returns the size of this rank's shard, including padding.
    pub fn local_size(&self) -> usize {
        self.extent_count() * self.block_shard_size()
    }

    /// Returns the number of the block at `index`, in a dimension whose blocks other than the first
    /// have `size` elements.
    fn block_at(&self, index: usize, size: usize) -> usize {
        (index / size + 1).saturating_sub(self.first_block_ratio)
    }

    /// Returns the start and size of block `number`, in a dimension whose blocks other than the
    /// first have `size` elements.
    fn block_bounds(&self, number: usize, size: usize) -> (usize, usize) {
        match number {
            0 => (0, self.first_block_ratio * size),
            _ => ((self.first_block_ratio + number - 1) * size, size),
        }
    }

    /// Returns the index in the whole dimension of this shard's index; `None` for padding.
    pub fn global_index(&self, index: usize) -> Option<usize> {
        let share = self.block_shard_size();
        let block = self.block_at(index, share);
        let (start, share) = self.block_bounds(block, share);
        let (global_start, extent) = self.block_bounds(block, self.block_size());
        let position = self.shard_index * share + index - start;
        (position < extent).then_some(global_start + position)
    }

    /// Returns this shard's index of `index` of the whole dimension; `None` if another shard has
    /// it.
    pub fn local_index(&self, index: usize) -> Option<usize> {
        let block = self.block_at(index, self.block_size());
        let (global_start, _) = self.block_bounds(block, self.block_size());
        let (start, share) = self.block_bounds(block, self.block_shard_size());
        let position = (index - global_start).checked_sub(self.shard_index * share)?;
        (position < share).then_some(start + position)
    }

    /// Returns for every block the start in this shard, the start in the whole dimension, and the
    /// length without padding.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..self.block_count).map(move |block| {
            let (local_start, share) = self.block_bounds(block, self.block_shard_size());
            let (global_start, extent) = self.block_bounds(block, self.block_size());
            let start = (self.shard_index * share).min(extent);
            (local_start, global_start + start, share.min(extent - start))
        })
    }

    /// Returns the fraction of all shards together that is padding.
    pub fn padding_fraction(&self) -> f64 {
        1.0 - self.global_size as f64 / (self.local_size() * self.shard_count) as f64
    }
}

/// Limit on the number of shards, beyond any real group.
const MAX_SHARDS: usize = 1 << 16;

/// Ratio of files that were written before blocks could differ.
fn equal_blocks() -> usize {
    1
}
