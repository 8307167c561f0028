//! Causal attention, tile by tile.

pub(crate) mod tile;

use crate::allocator::AllocClass;
use crate::ops::Host;
use crate::ops::host::attention::tile::{Grads, KvLayout, QkvColumns, QkvInputs, TILE_ROWS, Tile};
use std::ops::Range;

/// Heads, positions and workspace of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values. Each serves as many consecutive heads of queries.
    pub kv_heads: usize,
    /// Columns of each head.
    pub head_dim: usize,
    /// Rows of each sequence of queries.
    pub sequence: usize,
    /// Position of the first of them among the keys.
    pub offset: usize,
    /// Elements for the scores of the largest tile on the host.
    pub workspace: usize,
}

impl AttentionShape {
    /// Returns every tile of every head of sequence `number`. With `are_apart`, its keys and values
    /// are without queries, and those of no other sequence are with them.
    fn tiles(&self, number: usize, are_apart: bool, threads: usize) -> impl Iterator<Item = Tile> + use<> {
        let &Self { heads, kv_heads, head_dim: depth, sequence: rows, offset, .. } = self;
        let columns = QkvColumns { queries: heads * depth, keys: kv_heads * depth };
        let keys = KvLayout::new(are_apart, number * rows, columns);
        (0..heads).flat_map(move |head| {
            (0..rows).step_by(TILE_ROWS).map(move |start| Tile {
                first: number * rows,
                column: head * depth,
                key_column: head / (heads / kv_heads) * depth,
                queries: start..rows.min(start + TILE_ROWS),
                offset,
                keys,
                sums_offset: (number * heads + head) * rows,
                columns,
                depth,
                threads,
            })
        })
    }
}

impl Host {
    pub(crate) fn attention(
        &self,
        shape: &AttentionShape,
        numbers: Range<usize>,
        input: &[f32],
        keys: Option<&[f32]>,
        output: &mut [f32],
        log_sums: &mut [f32],
    ) {
        let sources = QkvInputs { queries: input, keys: keys.unwrap_or(input) };
        let mut room = self.memory.alloc(AllocClass::Activations, shape.workspace);
        for tile in numbers.flat_map(|number| shape.tiles(number, keys.is_some(), self.threads)) {
            let scores = &mut room[..tile.scores()];
            tile.score(sources, scores);
            tile.softmax(scores, &mut log_sums[tile.sums_range()]);
            tile.weighted_sum(sources, scores, output);
        }
    }

    pub(crate) fn attention_backward(
        &self,
        shape: &AttentionShape,
        numbers: Range<usize>,
        [input, log_sums, gradient]: [&[f32]; 3],
        keys: Option<&[f32]>,
        result: &mut [f32],
        of_keys: Option<&mut [f32]>,
    ) {
        let sources = QkvInputs { queries: input, keys: keys.unwrap_or(input) };
        let mut sums = Grads { queries: result, keys: of_keys };
        let mut room = self.memory.alloc(AllocClass::Activations, 2 * shape.workspace);
        let (room, other) = room.split_at_mut(shape.workspace);
        for tile in numbers.flat_map(|number| shape.tiles(number, keys.is_some(), self.threads)) {
            let (scores, slopes) = (&mut room[..tile.scores()], &mut other[..tile.scores()]);
            tile.score(sources, scores);
            tile.recompute_softmax(scores, &log_sums[tile.sums_range()]);
            tile.backward(sources, gradient, scores, slopes, &mut sums);
        }
    }
}
