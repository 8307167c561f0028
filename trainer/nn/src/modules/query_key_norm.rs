//! Normalization of queries and keys.

use super::{Module, Norm};
use crate::error::Result;
use crate::parameter::Registry;
use crate::pass::Pass;
use crate::tensor::Tensor;
use std::ops::Range;

/// Normalizes each head of queries and of keys by an RMSNorm (Henry et al., "Query-key
/// normalization for transformers", 2020). All heads of queries have one gain, and so have those of
/// keys, as in Qwen3.
///
/// (rows, queries | keys | values) → the same shape, in place. Saves queries and keys, and one
/// number per head of them.
pub struct QueryKeyNorm {
    queries: Norm,
    keys: Norm,
    /// This rank's heads of queries, and of keys.
    heads: [usize; 2],
    head_dim: usize,
}

impl QueryKeyNorm {
    /// Creates the norms `q_norm` and `k_norm` for this rank's `heads` heads of queries and of
    /// keys, of `head_dim` features each.
    pub fn new(registry: &mut Registry, heads: [usize; 2], head_dim: usize, epsilon: f32) -> Self {
        let queries = registry.scope("q_norm", |registry| Norm::rms(registry, head_dim, epsilon));
        let keys = registry.scope("k_norm", |registry| Norm::rms(registry, head_dim, epsilon));
        Self { queries, keys, heads, head_dim }
    }

    /// Returns both norms with their columns, in the order of forward.
    fn norms(&self) -> [(&Norm, Range<usize>); 2] {
        let [queries, keys] = self.heads.map(|heads| heads * self.head_dim);
        [(&self.queries, 0..queries), (&self.keys, queries..queries + keys)]
    }

    /// Copies some columns, with one row for each head.
    fn heads_of(&self, pass: &Pass<'_>, rows: &Tensor, columns: &Range<usize>) -> Tensor {
        let mut heads = pass.tensor(rows.rows(), columns.len());
        for row in 0..rows.rows() {
            heads.row_mut(row).copy_from_slice(&rows.row(row)[columns.clone()]);
        }
        heads.reshape(rows.rows() * columns.len() / self.head_dim, self.head_dim)
    }
}

/// Overwrites some columns with the rows of their heads.
fn write_heads(rows: &mut Tensor, columns: &Range<usize>, heads: &Tensor) {
    for (row, values) in heads.data().chunks_exact(columns.len()).enumerate() {
        rows.row_mut(row)[columns.clone()].copy_from_slice(values);
    }
}

impl Module for QueryKeyNorm {
    fn forward(&self, pass: &mut Pass<'_>, mut input: Tensor) -> Result<Tensor> {
        pass.expect_host("norms of queries and keys (model.qk_norm)")?;
        for (norm, columns) in self.norms() {
            let heads = self.heads_of(pass, &input, &columns);
            let normalized = norm.forward(pass, heads)?;
            write_heads(&mut input, &columns, &normalized);
        }
        Ok(input)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        // The tape is a stack, so the norm that saved last restores first.
        for (norm, columns) in self.norms().into_iter().rev() {
            let heads = self.heads_of(pass, &gradient, &columns);
            let of_input = norm.backward(pass, heads)?;
            write_heads(&mut gradient, &columns, &of_input);
        }
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;

    const HEADS: [usize; 2] = [3, 2];
    const DEPTH: usize = 8;

    /// Normalizes a row: three heads of queries, two of keys, and two of values.
    fn naive(x: &[f64], weights: &[Vec<f64>]) -> Vec<f64> {
        let head = |(number, head): (usize, &[f64])| {
            let square = head.iter().map(|x| x * x).sum::<f64>() / DEPTH as f64;
            let rate = 1.0 / (square + 1e-5).sqrt();
            let gain = |feature: usize| match number {
                0..3 => rate * weights[0][feature],
                3..5 => rate * weights[1][feature],
                _ => 1.0,
            };
            head.iter().enumerate().map(|(feature, x)| x * gain(feature)).collect::<Vec<_>>()
        };
        x.chunks_exact(DEPTH).enumerate().flat_map(head).collect()
    }

    #[test]
    fn head_norm_gradients_and_values_are_correct() {
        let make = |registry: &mut Registry| QueryKeyNorm::new(registry, HEADS, DEPTH, 1e-5);
        let check = GradCheck::new(make, 5, (HEADS[0] + 2 * HEADS[1]) * DEPTH);
        check.check_gradients(2e-4);
        check.check_values(1e-5, naive);
    }
}
