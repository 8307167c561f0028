//! Causal attention of several heads.

use super::Module;
use super::vector::{exp, exp_less, greatest, sum, vectorised};
use crate::error::Result;
use crate::memory::Floats;
use crate::pass::Pass;
use crate::tensor::Tensor;
use std::ops::Range;
use unisono_cuda::{Matrix, MatrixMut, matmul};

/// Queries that are worked on at once.
const PANEL: usize = 64;

/// Of each head, y = softmax(q kᵀ / √d, of what is not later) v, within each [`Pass::sequence`] (Vaswani and others:
/// Attention is all you need, 2017).
///
/// (rows, queries | keys | values, each of heads × d) → (rows, heads × d). Probabilities are made again in backward, a
/// panel of queries at a time (Dao and others: FlashAttention, 2022): it keeps its input and a number for each row and head, and
/// needs room for 2 × 64 × sequence beside.
#[derive(Clone, Copy, Debug)]
pub struct CausalAttention {
    heads: usize,
    head_dim: usize,
}

struct Saved {
    input: Tensor,
    /// ln of the sum of the powers that softmax divides by: rows of one head, heads of one sequence, sequences.
    log_sums: Floats,
}

impl CausalAttention {
    /// Of `heads` heads of `head_dim` features each: those that this rank has.
    pub fn new(heads: usize, head_dim: usize) -> Self {
        Self { heads, head_dim }
    }

    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Every panel of every head of every sequence of `rows` rows in all.
    fn panels(&self, pass: &Pass<'_>, rows: usize) -> impl Iterator<Item = Panel> + use<> {
        let (sequence, threads, attention) = (pass.sequence(), pass.threads(), *self);
        assert!(rows.is_multiple_of(sequence), "{rows} rows are no sequences of {sequence}");
        let heads =
            (0..rows / sequence).flat_map(move |number| (0..attention.heads).map(move |head| (number, head)));
        heads.flat_map(move |(number, head)| {
            (0..sequence).step_by(PANEL).map(move |start| Panel {
                first: number * sequence,
                column: head * attention.head_dim,
                queries: start..sequence.min(start + PANEL),
                sums: (number * attention.heads + head) * sequence,
                width: attention.width(),
                depth: attention.head_dim,
                threads,
            })
        })
    }
}

impl Module for CausalAttention {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let rows = input.rows();
        assert_eq!(input.columns(), 3 * self.width(), "queries, keys and values");
        let mut output = pass.tensor(rows, self.width());
        let mut log_sums = pass.floats(rows * self.heads);
        let mut room = pass.floats(PANEL * pass.sequence());
        for panel in self.panels(pass, rows) {
            let scores = &mut room[..panel.scores()];
            panel.score(input.data(), scores);
            panel.softmax(scores, &mut log_sums[panel.sums()]);
            panel.mix(input.data(), scores, output.data_mut());
        }
        pass.save(Saved { input, log_sums });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let Saved { input, log_sums } = pass.restore();
        let half = PANEL * pass.sequence();
        let mut result = Tensor::zeros(pass.memory(), input.rows(), input.columns());
        let mut room = pass.floats(2 * half);
        let (room, other) = room.split_at_mut(half);
        for panel in self.panels(pass, input.rows()) {
            let (scores, slopes) = (&mut room[..panel.scores()], &mut other[..panel.scores()]);
            panel.score(input.data(), scores);
            panel.recall(scores, &log_sums[panel.sums()]);
            panel.differentiate(input.data(), gradient.data(), scores, slopes, result.data_mut());
        }
        Ok(result)
    }
}

/// Some queries of one head of one sequence, and the keys up to the last of them.
struct Panel {
    /// First row of the sequence.
    first: usize,
    /// First column of the head, among queries.
    column: usize,
    /// Which queries of the sequence.
    queries: Range<usize>,
    /// Where the sums of the head begin.
    sums: usize,
    /// Columns of all heads.
    width: usize,
    /// Columns of one head.
    depth: usize,
    /// How many may work on a product.
    threads: usize,
}

impl Panel {
    fn count(&self) -> usize {
        self.queries.len()
    }

    /// Number of keys.
    fn reach(&self) -> usize {
        self.queries.end
    }

    fn scores(&self) -> usize {
        self.count() * self.reach()
    }

    fn sums(&self) -> Range<usize> {
        self.sums + self.queries.start..self.sums + self.queries.end
    }

    /// Where the queries are among rows of queries, keys and values.
    fn query_at(&self) -> usize {
        (self.first + self.queries.start) * 3 * self.width + self.column
    }

    /// Where the keys are, block 1, or the values, block 2.
    fn key_at(&self, block: usize) -> usize {
        self.first * 3 * self.width + block * self.width + self.column
    }

    fn queries<'a>(&self, input: &'a [f32]) -> Matrix<'a> {
        Matrix::strided(&input[self.query_at()..], self.count(), self.depth, 3 * self.width)
    }

    fn keys<'a>(&self, input: &'a [f32], block: usize) -> Matrix<'a> {
        Matrix::strided(&input[self.key_at(block)..], self.reach(), self.depth, 3 * self.width)
    }

    fn queries_mut<'a>(&self, input: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::strided(&mut input[self.query_at()..], self.count(), self.depth, 3 * self.width)
    }

    fn keys_mut<'a>(&self, input: &'a mut [f32], block: usize) -> MatrixMut<'a> {
        MatrixMut::strided(&mut input[self.key_at(block)..], self.reach(), self.depth, 3 * self.width)
    }

    fn output_at(&self) -> usize {
        (self.first + self.queries.start) * self.width + self.column
    }

    fn output<'a>(&self, output: &'a [f32]) -> Matrix<'a> {
        Matrix::strided(&output[self.output_at()..], self.count(), self.depth, self.width)
    }

    fn output_mut<'a>(&self, output: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::strided(&mut output[self.output_at()..], self.count(), self.depth, self.width)
    }

    fn matrix<'a>(&self, scores: &'a [f32]) -> Matrix<'a> {
        Matrix::new(scores, self.count(), self.reach())
    }

    fn matrix_mut<'a>(&self, scores: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::new(scores, self.count(), self.reach())
    }

    fn scale(&self) -> f32 {
        1.0 / (self.depth as f32).sqrt()
    }

    /// q kᵀ / √d.
    fn score(&self, input: &[f32], scores: &mut [f32]) {
        let (queries, keys) = (self.queries(input), self.keys(input, 1).t());
        matmul(self.matrix_mut(scores), 0.0, self.scale(), queries, keys, self.threads);
    }

    /// p v.
    fn mix(&self, input: &[f32], shares: &[f32], output: &mut [f32]) {
        let (shares, values) = (self.matrix(shares), self.keys(input, 2));
        matmul(self.output_mut(output), 0.0, 1.0, shares, values, self.threads);
    }

    /// Rows of `scores`, each as what it has of no later keys, and the rest.
    fn rows<'a>(&self, scores: &'a mut [f32]) -> impl Iterator<Item = (&'a mut [f32], &'a mut [f32])> {
        let lengths = self.queries.clone().map(|query| query + 1);
        scores.chunks_exact_mut(self.reach()).zip(lengths).map(|(row, length)| row.split_at_mut(length))
    }

    /// Scores become probabilities.
    fn softmax(&self, scores: &mut [f32], log_sums: &mut [f32]) {
        vectorised(
            #[inline(always)]
            || {
                for ((row, later), log_sum) in self.rows(scores).zip(log_sums) {
                    let most = greatest(row);
                    let sum = exp_less(row, most);
                    let share = 1.0 / sum;
                    row.iter_mut().for_each(|value| *value *= share);
                    later.fill(0.0);
                    *log_sum = most + sum.ln();
                }
            },
        );
    }

    /// Scores become the probabilities that they were in forward.
    fn recall(&self, scores: &mut [f32], log_sums: &[f32]) {
        vectorised(
            #[inline(always)]
            || {
                for ((row, later), log_sum) in self.rows(scores).zip(log_sums) {
                    row.iter_mut().for_each(|value| *value = exp(*value - log_sum));
                    later.fill(0.0);
                }
            },
        );
    }

    /// Adds the gradients of queries, keys and values to `result`, from the probabilities p and the gradient dy:
    /// dv = pᵀ dy; with dp = dy vᵀ, ds = p (dp - sum of p dp); dq = ds k, dk = dsᵀ q.
    fn differentiate(
        &self,
        input: &[f32],
        gradient: &[f32],
        shares: &[f32],
        slopes: &mut [f32],
        result: &mut [f32],
    ) {
        let (dy, p, scale, threads) =
            (self.output(gradient), self.matrix(shares), self.scale(), self.threads);
        matmul(self.keys_mut(result, 2), 1.0, 1.0, p.t(), dy, threads);
        matmul(self.matrix_mut(slopes), 0.0, 1.0, dy, self.keys(input, 2).t(), threads);
        self.through_softmax(shares, slopes);
        let ds = self.matrix(slopes);
        matmul(self.queries_mut(result), 0.0, scale, ds, self.keys(input, 1), threads);
        matmul(self.keys_mut(result, 1), 1.0, scale, ds.t(), self.queries(input), threads);
    }

    /// `slopes` of probabilities become those of scores.
    fn through_softmax(&self, shares: &[f32], slopes: &mut [f32]) {
        let rows = slopes.chunks_exact_mut(self.reach()).zip(shares.chunks_exact(self.reach()));
        vectorised(
            #[inline(always)]
            || {
                for (slopes, shares) in rows {
                    let mean = sum(shares, slopes, |p, dp| p * dp);
                    slopes.iter_mut().zip(shares).for_each(|(slope, share)| *slope = share * (*slope - mean));
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::check::Check;

    /// As the formula says, one number after another.
    fn naive(x: &[f64], rows: usize, sequence: usize, heads: usize, d: usize) -> Vec<f64> {
        let width = heads * d;
        let at = |row: usize, block: usize, head: usize, i: usize| {
            x[row * 3 * width + block * width + head * d + i]
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
    fn gradients_within_sequences() {
        Check::new(|_| CausalAttention::new(2, 3), 10, 18).sequence(5).gradients(2e-4);
    }

    #[test]
    fn values_of_one_panel_and_of_several() {
        for (rows, sequence) in [(12, 4), (2 * PANEL + 3, 2 * PANEL + 3), (2 * PANEL, PANEL)] {
            let check = Check::new(|_| CausalAttention::new(2, 3), rows, 18).sequence(sequence);
            check.whole(1e-5, |x, _| naive(x, rows, sequence, 2, 3));
        }
    }

    #[test]
    fn gradients_of_several_panels_are_those_of_sums_over_all_rows() {
        let rows = PANEL + 2;
        Check::new(|_| CausalAttention::new(1, 1), rows, 3).sequence(rows).gradients(2e-4);
    }
}
