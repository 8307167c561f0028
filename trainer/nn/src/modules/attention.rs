//! Multi-head attention, with grouped keys and values.
//!
//! Attention gets keys and values in blocks from the [`KvSource`] of its pass, and computes with
//! one block at a time. By default the one block is in its input. With micro-sequences
//! ([`Pass::set_micro_sequences`]), the keys and values of the earlier ones are kept, and the later
//! ones add to their gradients. Other sources bring keys and values of other ranks.

mod cached;
mod earlier_kv;
mod kv_cache;
mod kv_source;
mod local_rows;
mod sequence_kv;

pub use kv_cache::KvCache;
pub use kv_source::{KvBlock, KvBlocks, KvSource, chunk_count, row_positions, sequence_count, set_kv_source};
pub use local_rows::LocalRows;
pub use sequence_kv::{ChunkExchange, SequenceKv};

use super::Module;
use crate::error::Result;
use crate::modules::attention::kv_source::kv_source;
use crate::ops::host::attention::tile::{QkvColumns, TILE_ROWS};
use crate::ops::{AttentionShape, Values, ValuesMut};
use crate::pass::Pass;
use crate::step_plan::Direction;
use crate::tensor::Tensor;

/// Computes for each head y = softmax(q kᵀ / √d) v within each [`Pass::sequence`]: over earlier and
/// equal positions, or over all (Vaswani et al., "Attention is all you need", 2017).
///
/// (rows, queries | keys | values) → (rows, heads × d). Queries have heads × d columns, keys and
/// values kv_heads × d each. Each head of keys and values serves heads / kv_heads consecutive heads
/// of queries (Ainslie et al., "GQA", EMNLP 2023). Probabilities are recomputed in backward, for a
/// tile of queries at a time (Dao et al., "FlashAttention", 2022). Saves its input and one number
/// per row and head, and needs a workspace of 2 × 64 × sequence. If keys come in several blocks, it
/// also saves its output.
///
/// It has no parameters: linear layers before and after it do. Its passes panic for an input with
/// other columns, or with rows that are no whole sequences.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    site: u64,
    is_causal: bool,
}

struct Saved {
    input: Tensor,
    /// Output, if keys came in several blocks.
    output: Option<Tensor>,
    /// Log-sum-exp of the scores: rows of one head, heads of one sequence, sequences.
    log_sums: Tensor,
}

impl Attention {
    /// Creates causal attention with this rank's `heads` heads of `head_dim` features each. Keys
    /// and values have as many heads.
    pub fn new(heads: usize, head_dim: usize) -> Self {
        Self { heads, kv_heads: heads, head_dim, site: 0, is_causal: true }
    }

    /// Sets the number of heads of keys and values on this rank.
    ///
    /// # Panics
    /// Panics if it does not divide the number of heads.
    pub fn with_kv_heads(self, kv_heads: usize) -> Self {
        assert!(self.heads.is_multiple_of(kv_heads), "{} heads share {kv_heads}", self.heads);
        Self { kv_heads, ..self }
    }

    /// Returns this attention for a part of the heads, which may be empty.
    pub fn with_heads(self, heads: usize, kv_heads: usize) -> Self {
        Self { heads, kv_heads, ..self }
    }

    /// Sets the number by which a pass with micro-sequences tells this attention from others, such
    /// as [`Registry::rng_site`](crate::parameter::Registry::rng_site).
    pub fn with_site(self, site: u64) -> Self {
        Self { site, ..self }
    }

    /// Attends to all positions of a sequence. Not for micro-sequences, nor for a cache of keys.
    pub fn bidirectional(self) -> Self {
        Self { is_causal: false, ..self }
    }

    /// Returns the number of heads of queries.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Returns the number of heads of keys, which is that of values.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Returns the number of features of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Returns true if a row attends to no later positions.
    pub fn is_causal(&self) -> bool {
        self.is_causal
    }

    fn columns(&self) -> QkvColumns {
        QkvColumns { queries: self.heads * self.head_dim, keys: self.kv_heads * self.head_dim }
    }

    /// Returns the number of columns of the input: queries, keys and values.
    pub fn input_width(&self) -> usize {
        self.columns().all()
    }

    /// Returns the number of columns of the output, which is that of the queries.
    pub fn width(&self) -> usize {
        self.columns().queries
    }

    /// Returns the number of columns of keys | values.
    pub fn kv_width(&self) -> usize {
        2 * self.columns().keys
    }

    /// Returns the number of keys that each row attends to, in the order of positions.
    fn visible_keys(&self, pass: &Pass<'_>) -> Vec<usize> {
        if self.is_causal {
            return row_positions(pass).into_iter().map(|position| position + 1).collect();
        }
        assert!(pass.micro_sequences() == 1, "only causal attention has an order");
        vec![chunk_count(pass) * pass.sequence(); pass.sequence()]
    }

    /// Returns the shape for rows that attend to the first `visible` keys of a block each.
    fn shape<'v>(&self, visible: &'v [usize], workspace: usize) -> AttentionShape<'v> {
        let &Self { heads, kv_heads, head_dim, .. } = self;
        AttentionShape { heads, kv_heads, head_dim, visible, workspace }
    }

    /// Returns the workspace of backward in elements, for this sequence length: scores of the
    /// largest tile, and their gradients. Forward needs half.
    pub const fn workspace_len(sequence: usize) -> usize {
        2 * TILE_ROWS * sequence
    }

    /// Computes attention of the rows of `input` to all `blocks`.
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    pub fn forward_blocks(
        &self,
        pass: &mut Pass<'_>,
        input: Tensor,
        mut blocks: Box<dyn KvBlocks>,
    ) -> Result<Tensor> {
        let rows = input.rows();
        let mut output = pass.tensor_in_place(rows, self.width())?;
        let mut log_sums = pass.tensor_in_place(rows, self.heads)?;
        // Outputs and log-sums of one block, to be merged into those of all blocks so far.
        let mut partial = None;
        if blocks.merged_rows().is_some() {
            // A log-sum of minus infinity stands for no keys so far, so that these zeros have no
            // share in the first merge.
            output.data_mut().fill(0.0);
            log_sums.data_mut().fill(f32::NEG_INFINITY);
            partial = Some([self.width(), self.heads].map(|columns| pass.tensor(rows, columns)));
        }
        while let Some(block) = blocks.next_block(pass, &input, Direction::Forward)? {
            let Some([found, sums]) = &mut partial else {
                self.attend(pass, &block, &input, [&mut output, &mut log_sums])?;
                continue;
            };
            self.attend(pass, &block, &input, [&mut *found, &mut *sums])?;
            let shape = self.shape(block.visible, block.workspace);
            let values = [found.values(), sums.values()];
            pass.ops().merge_attention(&shape, values, output.values_mut(), log_sums.values_mut())?;
        }
        blocks.end_forward(pass);
        // With one block, backward has all probabilities of a query at once. With several blocks it
        // needs the output instead, for the sum over all keys.
        let merged = if partial.is_some() && pass.keeps() { Some(output.copy()?) } else { None };
        pass.save(Saved { input, output: merged, log_sums });
        Ok(output)
    }

    /// Writes attention to one block, with its log-sums.
    fn attend(
        &self,
        pass: &Pass<'_>,
        block: &KvBlock<'_>,
        input: &Tensor,
        [output, log_sums]: [&mut Tensor; 2],
    ) -> Result<()> {
        let (shape, sequences) = (self.shape(block.visible, block.workspace), block.sequences.clone());
        let Some(keys) = block.keys else {
            let (target, sums) = (output.values_mut(), log_sums.values_mut());
            return pass.ops().attention(&shape, sequences, input.values(), None, target, sums);
        };
        let keys = keys.chunks_exact(keys.len() / sequences.len());
        // An operation takes the keys of one sequence, if they are apart from the queries.
        for (number, keys) in sequences.zip(keys) {
            let (only, keys) = (number..number + 1, Some(Values::Host(keys)));
            let (target, sums) = (output.values_mut(), log_sums.values_mut());
            pass.ops().attention(&shape, only, input.values(), keys, target, sums)?;
        }
        Ok(())
    }

    /// Computes the gradient of the input from that of the output. `blocks` are those of forward.
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    pub fn backward_blocks(
        &self,
        pass: &mut Pass<'_>,
        gradient: &Tensor,
        mut blocks: Box<dyn KvBlocks>,
    ) -> Result<Tensor> {
        let Saved { input, output, log_sums } = pass.restore();
        let mut result = pass.zeros_in_place(input.rows(), input.columns())?;
        let dots = match (output, blocks.merged_rows()) {
            (Some(output), Some(rows)) => Some(self.dots(pass, output, gradient, rows)?),
            _ => None,
        };
        while let Some(block) = blocks.next_block(pass, &input, Direction::Backward)? {
            let values = [&input, &log_sums, gradient].map(Tensor::values);
            self.add_gradients(pass, block, values, dots.as_ref(), &mut result)?;
            // The next block may use the same memory for its gradients, so those of this block
            // leave first.
            blocks.send_gradients(pass, &mut result)?;
        }
        blocks.end_backward(pass, &mut result)?;
        Ok(result)
    }

    /// Returns the products of output and gradient of each query and head, in sequences of `rows`
    /// rows.
    fn dots(&self, pass: &Pass<'_>, output: Tensor, gradient: &Tensor, rows: usize) -> Result<Tensor> {
        let mut dots = pass.tensor(output.rows(), self.heads);
        let visible = vec![rows; rows];
        let shape = self.shape(&visible, Self::workspace_len(rows) / 2);
        pass.ops().attention_dots(&shape, [output.values(), gradient.values()], dots.values_mut())?;
        Ok(dots)
    }

    /// Adds the gradients of the queries to `result`, and those of the keys and values of a block
    /// where they are.
    fn add_gradients(
        &self,
        pass: &Pass<'_>,
        block: KvBlock<'_>,
        values: [Values<'_>; 3],
        dots: Option<&Tensor>,
        result: &mut Tensor,
    ) -> Result<()> {
        let KvBlock { sequences, visible, workspace, keys, gradients } = block;
        let shape = self.shape(visible, workspace);
        let (Some(keys), Some(gradients)) = (keys, gradients) else {
            // The keys and values are in the rows of the queries, and so are their gradients in
            // `result`.
            let target = result.values_mut();
            return pass.ops().attention_backward(&shape, sequences, values, [None; 2], target, None);
        };
        let share = keys.len() / sequences.len();
        let blocks = keys.chunks_exact(share).zip(gradients.chunks_exact_mut(share));
        for (number, (keys, gradients)) in sequences.zip(blocks) {
            let (only, target) = (number..number + 1, result.values_mut());
            let extra = [Some(Values::Host(keys)), dots.map(Tensor::values)];
            let kv_target = Some(ValuesMut::Host(gradients));
            pass.ops().attention_backward(&shape, only, values, extra, target, kv_target)?;
        }
        Ok(())
    }
}

impl Module for Attention {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        assert_eq!(input.columns(), self.input_width(), "queries, keys and values");
        kv_source(pass).forward(pass, self, input)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        kv_source(pass).backward(pass, self, gradient)
    }
}

#[cfg(test)]
mod score_count_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::modules::{GradCheck, random_values};
    use crate::parameter::{Inventory, UnitId};
    use crate::pass::Seeds;
    use crate::step_plan::{Visit, Work};
    use crate::strategy::LocalStrategy;

    /// Computes the formula element by element.
    fn naive(x: &[f64], rows: usize, sequence: usize, [heads, kv_heads]: [usize; 2], d: usize) -> Vec<f64> {
        let width = heads * d;
        let element = |row: usize, block: usize, head: usize, i: usize| {
            let column = match block {
                0 => head,
                _ => heads + (block - 1) * kv_heads + head / (heads / kv_heads),
            };
            x[(row * (heads + 2 * kv_heads) + column) * d + i]
        };
        let mut output = vec![0.0; rows * width];
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let keys = row / sequence * sequence..row + 1;
            let score =
                |key| (0..d).map(|i| element(row, 0, head, i) * element(key, 1, head, i)).sum::<f64>();
            let powers: Vec<f64> = keys.clone().map(|key| (score(key) / (d as f64).sqrt()).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for i in 0..d {
                let value = |(key, power): (usize, &f64)| power * element(key, 2, head, i);
                output[row * width + head * d + i] = keys.clone().zip(&powers).map(value).sum::<f64>() / sum;
            }
        }
        output
    }

    #[test]
    fn attention_gradients_stay_within_sequences() {
        GradCheck::new(|_| Attention::new(2, 3), 10, 18).sequence(5).check_gradients(2e-4);
    }

    #[test]
    fn grouped_heads_have_correct_gradients_and_values() {
        for kv_heads in [1, 2] {
            let make = |_: &mut _| Attention::new(4, 3).with_kv_heads(kv_heads);
            let columns = 3 * (4 + 2 * kv_heads);
            GradCheck::new(make, 10, columns).sequence(5).check_gradients(2e-4);
            let rows = 2 * TILE_ROWS + 6;
            let check = GradCheck::new(make, rows, columns).sequence(rows / 2);
            check.check_all_rows(1e-5, |x, _| naive(x, rows, rows / 2, [4, kv_heads], 3));
        }
    }

    /// Repeats each head of keys and values for each of its two heads of queries.
    fn repeated(grouped: &[f32]) -> Vec<f32> {
        let rows = grouped.chunks_exact(24).flat_map(|row| {
            let (queries, keys) = row.split_at(12);
            let twice = keys.chunks_exact(3).flat_map(|head| head.repeat(2));
            queries.iter().copied().chain(twice)
        });
        rows.collect()
    }

    #[test]
    fn grouped_heads_equal_repeated_keys_and_values() {
        let (sequence, rows) = (TILE_ROWS + 3, 2 * TILE_ROWS + 6);
        let (input, slope) = (random_values(1, 24 * rows), random_values(2, 12 * rows));
        let run = |attention: Attention, input: &[f32]| undivided(attention, sequence, input, &slope);
        let grouped = run(Attention::new(4, 3).with_kv_heads(2), &input);
        let full = run(Attention::new(4, 3), &repeated(&input));
        assert_eq!(grouped[0], full[0], "the same products");
        for (found, full) in grouped[1].chunks_exact(24).zip(full[1].chunks_exact(36)) {
            assert_eq!(found[..12], full[..12], "gradients of queries");
            for (head, found) in found[12..].chunks_exact(3).enumerate() {
                let [left, right] = [0, 3].map(|start| &full[12 + 6 * head + start..][..3]);
                let sums = left.iter().zip(right).map(|(left, right)| left + right);
                assert!(found.iter().zip(sums).all(|(found, sum)| (found - sum).abs() < 1e-5));
            }
        }
    }

    /// Returns the output and gradient of sequences of `sequence` rows.
    fn undivided(attention: Attention, sequence: usize, input: &[f32], slope: &[f32]) -> [Vec<f32>; 2] {
        let memory = Allocator::default();
        let tensor =
            |values: &[f32], columns| Tensor::from_slice(&memory, values.len() / columns, columns, values);
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_sequence(sequence);
        let output = attention.forward(&mut pass, tensor(input, attention.input_width())).expect("forward");
        let gradient = attention.backward(&mut pass, tensor(slope, attention.width())).expect("backward");
        [output.data().to_vec(), gradient.data().to_vec()]
    }

    /// Returns outputs and gradients of each of `parts` micro-sequences of one sequence.
    fn in_micro_sequences(
        attention: Attention,
        parts: usize,
        input: &[f32],
        slope: &[f32],
    ) -> [Vec<Vec<f32>>; 2] {
        let (memory, columns) = (Allocator::default(), [attention.input_width(), attention.width()]);
        let length = input.len() / columns[0] / parts;
        let part = |values: &[f32], columns: usize, index: usize| {
            let range = index * length * columns..(index + 1) * length * columns;
            Tensor::from_slice(&memory, length, columns, &values[range])
        };
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let seeds = vec![Seeds::default(); parts];
        let mut pass = Pass::with_micro_batches(&mut strategy, &memory, &seeds, 1);
        pass.set_sequence(length);
        pass.set_micro_sequences(parts);
        let mut results = [vec![Vec::new(); parts], vec![Vec::new(); parts]];
        for (work, result) in [Work::Forward, Work::Backward].into_iter().zip(&mut results) {
            let visit = Visit { work, unit: UnitId(0), micro_batches: 0..parts };
            let run = |pass: &mut Pass<'_>, index: usize| {
                let value = match work {
                    Work::Forward => attention.forward(pass, part(input, columns[0], index))?,
                    _ => attention.backward(pass, part(slope, columns[1], index))?,
                };
                result[index] = value.data().to_vec();
                Ok(())
            };
            pass.visit(&visit, run).expect("a visit");
        }
        assert!(pass.is_complete(), "keys and values are gone");
        results
    }

    #[test]
    fn micro_sequences_see_earlier_ones() {
        let sequence = 3 * TILE_ROWS + 12;
        for attention in [Attention::new(2, 3), Attention::new(4, 3).with_kv_heads(2)] {
            let columns = [attention.width(), attention.input_width()];
            let [slope, input] = columns.map(|columns| random_values(1, sequence * columns));
            let expected = undivided(attention, sequence, &input, &slope);
            for parts in [2, 3, 6] {
                let found = in_micro_sequences(attention, parts, &input, &slope);
                for ((found, expected), columns) in found.iter().zip(&expected).zip(columns) {
                    let found = found.concat();
                    assert_eq!(found.len(), sequence * columns);
                    let is_near = |(left, right): (&f32, &f32)| (left - right).abs() < 1e-5;
                    assert!(found.iter().zip(expected).all(is_near), "{parts} parts");
                }
            }
        }
    }

    #[test]
    fn attention_is_correct_for_one_and_many_tiles() {
        for (rows, sequence) in [(12, 4), (2 * TILE_ROWS + 3, 2 * TILE_ROWS + 3), (2 * TILE_ROWS, TILE_ROWS)]
        {
            let check = GradCheck::new(|_| Attention::new(2, 3), rows, 18).sequence(sequence);
            check.check_all_rows(1e-5, |x, _| naive(x, rows, sequence, [2, 2], 3));
        }
    }

    #[test]
    fn tiled_gradients_match_untiled() {
        let rows = TILE_ROWS + 2;
        GradCheck::new(|_| Attention::new(1, 1), rows, 3).sequence(rows).check_gradients(2e-4);
    }
}
