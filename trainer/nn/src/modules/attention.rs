//! Multi-head attention, with grouped keys and values.
//!
//! If ranks have chunks of each sequence ([`Pass::sequence_group`]), the keys and values of one
//! sequence at a time are gathered, and gathered again in backward. Each rank then receives the sum
//! of the gradients of its own keys and values. So a rank needs memory for the keys and values of
//! one whole sequence in addition to its chunks.
//!
//! With micro-sequences ([`Pass::set_micro_sequences`]), the keys and values of the earlier ones
//! are kept, and the later ones add to their gradients.

mod cached;
mod head_exchange;
mod key_order;
mod kv_exchange;
mod ring;
mod shared_sequence;

use super::Module;
use crate::error::Result;
use crate::modules::attention::kv_exchange::KvExchange;
use crate::modules::attention::shared_sequence::SharedSequence;
use crate::ops::host::attention::tile::{QkvColumns, TILE_ROWS};
use crate::ops::{AttentionShape, Values, ValuesMut};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::Communicator;

/// Computes for each head y = softmax(q kᵀ / √d) v within each [`Pass::sequence`]: over earlier and
/// equal positions, or over all (Vaswani et al., "Attention is all you need", 2017).
///
/// (rows, queries | keys | values) → (rows, heads × d). Queries have heads × d columns, keys and
/// values kv_heads × d each. Each head of keys and values serves heads / kv_heads consecutive heads
/// of queries (Ainslie et al., "GQA", EMNLP 2023). Probabilities are recomputed in backward, for a
/// tile of queries at a time (Dao et al., "FlashAttention", 2022). Saves its input and one number
/// per row and head, and needs a workspace of 2 × 64 × sequence.
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

    /// Sets the number by which a pass with micro-sequences tells this attention from others, such
    /// as [`Registry::rng_site`](crate::parameter::Registry::rng_site).
    pub fn with_site(self, site: u64) -> Self {
        Self { site, ..self }
    }

    /// Attends to all positions of a sequence. Not for micro-sequences, nor for a cache of keys.
    pub fn bidirectional(self) -> Self {
        Self { is_causal: false, ..self }
    }

    fn columns(&self) -> QkvColumns {
        QkvColumns { queries: self.heads * self.head_dim, keys: self.kv_heads * self.head_dim }
    }

    fn width(&self) -> usize {
        self.columns().queries
    }

    /// Returns the number of keys that each row attends to, in the order of positions.
    fn visible_keys(&self, pass: &Pass<'_>) -> Vec<usize> {
        if self.is_causal {
            return pass.positions().into_iter().map(|position| position + 1).collect();
        }
        assert!(
            pass.micro_sequences() == 1 && pass.kv_cache().is_none(),
            "only causal attention has an order"
        );
        let ranks = pass.sequence_group().map_or(1, Communicator::size);
        vec![ranks * pass.sequence(); pass.sequence()]
    }

    /// Returns the shape for sequences of this pass, or this rank's chunks of them, whose rows
    /// attend to `visible` keys each.
    fn shape<'v>(&self, pass: &Pass<'_>, visible: &'v [usize]) -> AttentionShape<'v> {
        let parts = pass.sequence_group().map_or(1, Communicator::size) * pass.micro_sequences();
        let workspace = Self::workspace_len(pass.sequence() * parts) / 2;
        AttentionShape { workspace, ..self.shape_of(visible) }
    }

    /// Returns the shape for whole sequences.
    fn shape_of<'v>(&self, visible: &'v [usize]) -> AttentionShape<'v> {
        let &Self { heads, kv_heads, head_dim, .. } = self;
        let workspace = Self::workspace_len(visible.len()) / 2;
        AttentionShape { heads, kv_heads, head_dim, visible, workspace }
    }

    /// Returns the workspace of backward in elements, for this sequence length: scores of the
    /// largest tile, and their gradients. Forward needs half.
    pub fn workspace_len(sequence: usize) -> usize {
        2 * TILE_ROWS * sequence
    }
}

/// Returns the number of sequences, or chunks of sequences, in `rows` rows.
fn sequence_count(pass: &Pass<'_>, rows: usize) -> usize {
    assert!(rows.is_multiple_of(pass.sequence()), "{rows} rows are no sequences of {}", pass.sequence());
    rows / pass.sequence()
}

impl Module for Attention {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        assert_eq!(input.columns(), self.columns().all(), "queries, keys and values");
        if pass.kv_cache().is_some() {
            return self.forward_cached(pass, &input);
        }
        if let Some(shared) = SharedSequence::for_pass(pass, input.rows()) {
            return self.forward_shared(pass, input, &shared);
        }
        let (sequences, visible) = (sequence_count(pass, input.rows()), self.visible_keys(pass));
        let shape = self.shape(pass, &visible);
        let mut output = pass.tensor_in_place(input.rows(), self.width())?;
        let mut log_sums = pass.tensor_in_place(input.rows(), self.heads)?;
        let (to, sums) = (output.values_mut(), log_sums.values_mut());
        match KvExchange::for_pass(pass, self.site, self.columns(), sequences)? {
            None => pass.ops().attention(&shape, 0..sequences, input.values(), None, to, sums)?,
            Some(mut apart) => {
                for number in 0..sequences {
                    let keys = Some(Values::Host(apart.keys(pass, number, input.data())?));
                    let (to, sums, only) = (output.values_mut(), log_sums.values_mut(), number..number + 1);
                    pass.ops().attention(&shape, only, input.values(), keys, to, sums)?;
                }
                apart.end_forward(pass);
            }
        }
        pass.save(Saved { input, log_sums });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        if let Some(shared) = SharedSequence::for_pass(pass, gradient.rows()) {
            return self.backward_shared(pass, &gradient, &shared);
        }
        let Saved { input, log_sums } = pass.restore();
        let (sequences, visible) = (sequence_count(pass, input.rows()), self.visible_keys(pass));
        let shape = self.shape(pass, &visible);
        let mut result = pass.zeros_in_place(input.rows(), input.columns())?;
        let from = [input.values(), log_sums.values(), gradient.values()];
        match KvExchange::for_pass(pass, self.site, self.columns(), sequences)? {
            None => {
                let to = result.values_mut();
                pass.ops().attention_backward(&shape, 0..sequences, from, [None; 2], to, None)?;
            }
            Some(mut apart) => {
                for number in 0..sequences {
                    let (keys, of_keys) = apart.keys_and_slopes(pass, number, input.data())?;
                    let (keys, of_keys) = (Some(Values::Host(keys)), Some(ValuesMut::Host(of_keys)));
                    let (to, only) = (result.values_mut(), number..number + 1);
                    pass.ops().attention_backward(&shape, only, from, [keys, None], to, of_keys)?;
                    apart.scatter(pass, number, result.data_mut())?;
                }
                apart.end_backward(pass);
            }
        }
        Ok(result)
    }
}

#[cfg(test)]
mod context_tests;
#[cfg(test)]
mod overlap_tests;
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
    use crate::testing;

    /// Computes the formula element by element.
    fn naive(x: &[f64], rows: usize, sequence: usize, [heads, kv_heads]: [usize; 2], d: usize) -> Vec<f64> {
        let width = heads * d;
        let at = |row: usize, block: usize, head: usize, i: usize| {
            let column = match block {
                0 => head,
                _ => heads + (block - 1) * kv_heads + head / (heads / kv_heads),
            };
            x[(row * (heads + 2 * kv_heads) + column) * d + i]
        };
        let mut output = vec![0.0; rows * width];
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let keys = row / sequence * sequence..row + 1;
            let score = |key| (0..d).map(|i| at(row, 0, head, i) * at(key, 1, head, i)).sum::<f64>();
            let powers: Vec<f64> = keys.clone().map(|key| (score(key) / (d as f64).sqrt()).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for i in 0..d {
                let value = |(key, power): (usize, &f64)| power * at(key, 2, head, i);
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
        let run = |attention: Attention, input: &[f32]| {
            testing::run_ranks(1, |group| chunk(&group, attention, sequence, input, &slope)).remove(0)
        };
        let grouped = run(Attention::new(4, 3).with_kv_heads(2), &input);
        let full = run(Attention::new(4, 3), &repeated(&input));
        assert_eq!(grouped[0], full[0], "the same products");
        for (found, full) in grouped[1].chunks_exact(24).zip(full[1].chunks_exact(36)) {
            assert_eq!(found[..12], full[..12], "gradients of queries");
            for (head, found) in found[12..].chunks_exact(3).enumerate() {
                let [one, other] = [0, 3].map(|at| &full[12 + 6 * head + at..][..3]);
                let sums = one.iter().zip(other).map(|(one, other)| one + other);
                assert!(found.iter().zip(sums).all(|(found, sum)| (found - sum).abs() < 1e-5));
            }
        }
    }

    /// Returns the output and gradient of a rank with a chunk of each sequence of `input` and
    /// `slope`.
    fn chunk(
        group: &Communicator,
        attention: Attention,
        sequence: usize,
        input: &[f32],
        slope: &[f32],
    ) -> [Vec<f32>; 2] {
        let (memory, length) = (Allocator::default(), sequence / group.size());
        let own = |all: &[f32], columns: usize| {
            let sequences = all.chunks(sequence * columns);
            let part = |one: &[f32]| one[group.rank() * length * columns..][..length * columns].to_vec();
            let part: Vec<f32> = sequences.flat_map(part).collect();
            Tensor::from_slice(&memory, part.len() / columns, columns, &part)
        };
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_sequence(length);
        pass.set_sequence_group((group.size() > 1).then_some(group));
        let output = attention.forward(&mut pass, own(input, attention.columns().all())).expect("forward");
        let gradient = attention.backward(&mut pass, own(slope, attention.width())).expect("backward");
        [output.data().to_vec(), gradient.data().to_vec()]
    }

    #[test]
    fn chunked_attention_sees_earlier_chunks() {
        let sequence = 2 * TILE_ROWS + 4;
        for attention in [Attention::new(2, 3), Attention::new(4, 3).with_kv_heads(2)] {
            let columns = [attention.width(), attention.columns().all()];
            let [slope, input] = columns.map(|columns| random_values(1, 2 * sequence * columns));
            let of =
                |ranks| testing::run_ranks(ranks, |group| chunk(&group, attention, sequence, &input, &slope));
            let whole = of(1).remove(0);
            for ranks in [2, 3, 4] {
                for (rank, found) in of(ranks).into_iter().enumerate() {
                    for ((found, whole), columns) in found.iter().zip(&whole).zip(columns) {
                        let length = sequence / ranks * columns;
                        let sequences = whole.chunks(sequence * columns);
                        let expected = sequences.flat_map(|one| &one[rank * length..][..length]);
                        let near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-5;
                        assert!(found.iter().zip(expected).all(near), "{ranks} ranks, rank {rank}");
                    }
                }
            }
        }
    }

    /// Returns outputs and gradients of this rank's part of each of `parts` micro-sequences of one
    /// sequence.
    fn in_micro_sequences(
        group: &Communicator,
        attention: Attention,
        parts: usize,
        input: &[f32],
        slope: &[f32],
    ) -> [Vec<Vec<f32>>; 2] {
        let (memory, columns) = (Allocator::default(), [attention.columns().all(), attention.width()]);
        let length = input.len() / columns[0] / parts / group.size();
        let part = |all: &[f32], columns: usize, index: usize| {
            let first = (index * group.size() + group.rank()) * length;
            Tensor::from_slice(&memory, length, columns, &all[first * columns..(first + length) * columns])
        };
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let seeds = vec![Seeds::default(); parts];
        let mut pass = Pass::with_micro_batches(&mut strategy, &memory, &seeds, 1);
        pass.set_sequence(length);
        pass.set_micro_sequences(parts);
        pass.set_sequence_group((group.size() > 1).then_some(group));
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
            let columns = [attention.width(), attention.columns().all()];
            let [slope, input] = columns.map(|columns| random_values(1, sequence * columns));
            let whole =
                testing::run_ranks(1, |group| chunk(&group, attention, sequence, &input, &slope)).remove(0);
            for (ranks, parts) in [(1, 2), (1, 6), (2, 3), (3, 4)] {
                let found = testing::run_ranks(ranks, |group| {
                    in_micro_sequences(&group, attention, parts, &input, &slope)
                });
                for ((which, whole), columns) in whole.iter().enumerate().zip(columns) {
                    let parts = (0..parts).flat_map(|part| found.iter().map(move |rank| &rank[which][part]));
                    let found: Vec<f32> = parts.flatten().copied().collect();
                    assert_eq!(found.len(), sequence * columns);
                    let near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-5;
                    assert!(found.iter().zip(whole).all(near), "{ranks} ranks, value {which}");
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
