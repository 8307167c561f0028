//! Causal attention, tile by tile.

pub(crate) mod tile;

use crate::allocator::AllocClass;
use crate::ops::Host;
use crate::ops::host::attention::tile::{Grads, KvLayout, QkvColumns, QkvInputs, TILE_ROWS, Tile};
use crate::ops::host::vector::sum;
use std::ops::Range;

/// Heads, positions and workspace of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values. Each serves as many consecutive heads of queries.
    pub kv_heads: usize,
    /// Columns of each head.
    pub head_dim: usize,
    /// For each row of a sequence of queries, the number of keys that it attends to: the first
    /// ones. Ascending.
    pub visible: &'a [usize],
    /// Elements for the scores of the largest tile on the host.
    pub workspace: usize,
}

impl AttentionShape<'_> {
    /// Returns the elements of the output that belong to the query and head of log-sum `index`.
    fn output_range(&self, index: usize) -> Range<usize> {
        let &Self { heads, head_dim, .. } = self;
        let (row, head) = (index % self.sequence(), index / self.sequence() % heads);
        let first = (index / (heads * self.sequence()) * self.sequence() + row) * heads + head;
        first * head_dim..(first + 1) * head_dim
    }

    /// Returns the rows of each sequence of queries.
    pub fn sequence(&self) -> usize {
        self.visible.len()
    }

    /// Returns every tile of every head of sequence `number`. With `are_apart`, its keys and values
    /// are without queries, and those of no other sequence are with them.
    fn tiles(&self, number: usize, are_apart: bool, threads: usize) -> impl Iterator<Item = Tile<'_>> {
        let &Self { heads, kv_heads, head_dim: depth, visible, .. } = self;
        let rows = visible.len();
        let columns = QkvColumns { queries: heads * depth, keys: kv_heads * depth };
        let keys = KvLayout::new(are_apart, number * rows, columns);
        (0..heads).flat_map(move |head| {
            (0..rows).step_by(TILE_ROWS).map(move |start| Tile {
                first: number * rows,
                column: head * depth,
                key_column: head / (heads / kv_heads) * depth,
                queries: start..rows.min(start + TILE_ROWS),
                visible: &visible[start..rows.min(start + TILE_ROWS)],
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
        shape: &AttentionShape<'_>,
        numbers: Range<usize>,
        input: &[f32],
        keys: Option<&[f32]>,
        output: &mut [f32],
        log_sums: &mut [f32],
    ) {
        let sources = QkvInputs { queries: input, keys: keys.unwrap_or(input) };
        let mut room = self.memory.alloc(AllocClass::Activations, shape.workspace);
        for tile in numbers.flat_map(|number| shape.tiles(number, keys.is_some(), self.threads)) {
            // Queries can precede all keys of another rank. A softmax over no keys would divide by
            // zero.
            if tile.key_count() == 0 {
                tile.attend_to_nothing(output, &mut log_sums[tile.sums_range()]);
                continue;
            }
            let scores = &mut room[..tile.scores()];
            tile.score(sources, scores);
            tile.softmax(scores, &mut log_sums[tile.sums_range()]);
            tile.weighted_sum(sources, scores, output);
        }
    }

    pub(crate) fn attention_backward(
        &self,
        shape: &AttentionShape<'_>,
        numbers: Range<usize>,
        [input, log_sums, gradient]: [&[f32]; 3],
        [keys, dots]: [Option<&[f32]>; 2],
        result: &mut [f32],
        of_keys: Option<&mut [f32]>,
    ) {
        let sources = QkvInputs { queries: input, keys: keys.unwrap_or(input) };
        let mut sums = Grads { queries: result, keys: of_keys };
        let mut room = self.memory.alloc(AllocClass::Activations, 2 * shape.workspace);
        let (room, other) = room.split_at_mut(shape.workspace);
        let tiles = numbers.flat_map(|number| shape.tiles(number, keys.is_some(), self.threads));
        for tile in tiles.filter(|tile| tile.key_count() > 0) {
            let (scores, slopes) = (&mut room[..tile.scores()], &mut other[..tile.scores()]);
            // Scores are computed again, because keeping them would need memory that grows with the
            // square of the sequence.
            tile.score(sources, scores);
            tile.recompute_softmax(scores, &log_sums[tile.sums_range()]);
            let dots = dots.map(|dots| &dots[tile.sums_range()]);
            tile.backward(sources, gradient, (scores, dots), slopes, &mut sums);
        }
    }

    pub(crate) fn merge_attention(
        &self,
        shape: &AttentionShape<'_>,
        [more, more_sums]: [&[f32]; 2],
        output: &mut [f32],
        log_sums: &mut [f32],
    ) {
        for (index, (more_sum, sum)) in more_sums.iter().zip(log_sums).enumerate() {
            let total = add_logs(*sum, *more_sum);
            // Neither side has a key for this query, and the shares would not be numbers.
            if total == f32::NEG_INFINITY {
                continue;
            }
            let shares = [*sum - total, *more_sum - total].map(f32::exp);
            let range = shape.output_range(index);
            for (value, more) in output[range.clone()].iter_mut().zip(&more[range]) {
                *value = shares[0] * *value + shares[1] * more;
            }
            *sum = total;
        }
    }

    pub(crate) fn attention_dots(
        &self,
        shape: &AttentionShape<'_>,
        [output, gradient]: [&[f32]; 2],
        dots: &mut [f32],
    ) {
        for (index, dot) in dots.iter_mut().enumerate() {
            let range = shape.output_range(index);
            *dot = sum(&output[range.clone()], &gradient[range], |value, slope| value * slope);
        }
    }
}

/// Returns ln(e^`left` + e^`right`).
fn add_logs(left: f32, right: f32) -> f32 {
    let (most, least) = (left.max(right), left.min(right));
    // The difference of two infinities is not a number.
    if least == f32::NEG_INFINITY { most } else { most + (least - most).exp().ln_1p() }
}
