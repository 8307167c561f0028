//! Sharding of a tensor over a tensor parallel group.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One rank's shard of a dimension.
///
/// The dimension consists of `block_count` blocks, such as queries, keys and values in one matrix.
/// The first block may be larger than the others, which are equal. Each block consists of equally
/// many groups of elements that stay together, such as the features of a head. Every shard has
/// equally many groups of every block. Missing groups are zero padding at the end of the last
/// shards.
///
/// If there are fewer groups than shards, such as fewer heads of keys than ranks, `repeats`
/// consecutive shards have the same groups of every block but the first. The first block is still
/// divided between all shards.
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
    /// Number of shards that have the same part of every block but the first: 1 if shards divide
    /// all blocks. Must divide the number of shards and `first_block_ratio`. Only the first
    /// dimension of a tensor may have more than 1.
    #[serde(default = "no_repeats")]
    pub repeats: usize,
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
            repeats: 1,
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
            repeats,
        } = *self;
        // Files have such specifications, and damaged ones have any numbers.
        let extents = blocks.checked_sub(1).and_then(|others| others.checked_add(ratio));
        let least = extents.filter(|_| ratio > 0).and_then(|extents| extents.checked_mul(grain));
        let fits = least.is_some_and(|least| (1..=size).contains(&least));
        let repeats_fit = match repeats {
            0 => false,
            1 => true,
            _ => dimension == 0 && parts.is_multiple_of(repeats) && ratio.is_multiple_of(repeats),
        };
        shape.get(dimension) == Some(&size) && fits && repeats_fit && part < parts && parts <= MAX_SHARDS
    }

    /// Returns the blocks of the whole dimension.
    fn global_blocks(&self) -> Blocks {
        let ratio = self.first_block_ratio;
        Blocks { ratio, size: self.global_size / (self.block_count - 1 + ratio) }
    }

    /// Returns the blocks of this shard, including padding.
    fn local_blocks(&self) -> Blocks {
        let groups = self.global_blocks().size / self.granularity;
        let size = groups.div_ceil(self.shard_count / self.repeats) * self.granularity;
        Blocks { ratio: self.first_block_ratio / self.repeats, size }
    }

    /// Returns the number of shards of block `number` before this one.
    fn index_in_block(&self, number: usize) -> usize {
        if number == 0 { self.shard_index } else { self.shard_index / self.repeats }
    }

    /// Returns the size of this rank's shard, including padding.
    pub fn local_size(&self) -> usize {
        self.local_blocks().bounds(self.block_count).0
    }

    /// Returns the indices of this shard that other shards have too. They are the last ones, and
    /// none unless shards repeat blocks.
    pub fn repeated_range(&self) -> Range<usize> {
        let end = self.local_size();
        if self.repeats > 1 { self.local_blocks().bounds(0).1..end } else { end..end }
    }

    /// Returns true if this is the first of the shards that have the same part of repeated blocks.
    pub fn is_first_copy(&self) -> bool {
        self.shard_index.is_multiple_of(self.repeats)
    }

    /// Returns the index in the whole dimension of this shard's index; `None` for padding.
    pub fn global_index(&self, index: usize) -> Option<usize> {
        let blocks = self.local_blocks();
        let number = blocks.number_at(index);
        let (start, share) = blocks.bounds(number);
        let (global_start, extent) = self.global_blocks().bounds(number);
        let position = self.index_in_block(number) * share + index - start;
        (position < extent).then_some(global_start + position)
    }

    /// Returns this shard's index of `index` of the whole dimension; `None` if only other shards
    /// have it.
    pub fn local_index(&self, index: usize) -> Option<usize> {
        let blocks = self.global_blocks();
        let number = blocks.number_at(index);
        let (global_start, _) = blocks.bounds(number);
        let (start, share) = self.local_blocks().bounds(number);
        let position = (index - global_start).checked_sub(self.index_in_block(number) * share)?;
        (position < share).then_some(start + position)
    }

    /// Returns for every block the start in this shard, the start in the whole dimension, and the
    /// length without padding.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..self.block_count).map(move |number| {
            let (local_start, share) = self.local_blocks().bounds(number);
            let (global_start, extent) = self.global_blocks().bounds(number);
            // The last shards may have padding only, and then their run is empty.
            let start = (self.index_in_block(number) * share).min(extent);
            (local_start, global_start + start, share.min(extent - start))
        })
    }

    /// Returns the fraction of all shards together that is padding. Repeated parts count once.
    pub fn padding_fraction(&self) -> f64 {
        let repeated = self.repeated_range().len();
        let divided = self.local_size() - repeated;
        let elements = divided * self.shard_count + repeated * self.shard_count / self.repeats;
        1.0 - self.global_size as f64 / elements as f64
    }
}

/// Blocks of a dimension, or of a shard of it.
#[derive(Clone, Copy)]
struct Blocks {
    /// Size of the first block in sizes of another.
    ratio: usize,
    /// Size of a block other than the first.
    size: usize,
}

impl Blocks {
    /// Returns the number of the block at `index`.
    fn number_at(self, index: usize) -> usize {
        (index / self.size + 1).saturating_sub(self.ratio)
    }

    /// Returns the start and size of block `number`.
    fn bounds(self, number: usize) -> (usize, usize) {
        match number {
            0 => (0, self.ratio * self.size),
            _ => ((self.ratio + number - 1) * self.size, self.size),
        }
    }
}

/// Limit on the number of shards, beyond any real group.
const MAX_SHARDS: usize = 1 << 16;

/// Ratio of files that have none, because their blocks are equal.
fn equal_blocks() -> usize {
    1
}

/// Repeats of files that have none, because their shards divide all blocks.
fn no_repeats() -> usize {
    1
}
