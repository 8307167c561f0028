//! What attention computes at once.

use crate::nn::vector::{exp, exp_less, greatest, sum, vectorised};
use std::ops::Range;
use unisono_cuda::{Matrix, MatrixMut, matmul};

/// Queries that are worked on at once.
pub(super) const PANEL: usize = 64;

/// Where queries are read, and keys and values: the same rows, or those of one whole sequence.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) queries: &'a [f32],
    pub(super) keys: &'a [f32],
}

/// Where their gradients are added up: in the same rows, unless keys and values have `keys`.
pub(super) struct Slopes<'a> {
    pub(super) queries: &'a mut [f32],
    pub(super) keys: Option<&'a mut [f32]>,
}

impl Slopes<'_> {
    fn keys(&mut self) -> &mut [f32] {
        self.keys.as_deref_mut().unwrap_or(self.queries)
    }
}

/// Where the keys and values of a sequence lie.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// First row.
    first: usize,
    /// First column.
    column: usize,
    /// Columns of a row.
    stride: usize,
}

impl Keys {
    /// Alone in gathered rows, or behind the queries in those that begin with row `first`.
    pub(super) fn of(are_gathered: bool, first: usize, width: usize) -> Self {
        match are_gathered {
            true => Self { first: 0, column: 0, stride: 2 * width },
            false => Self { first, column: width, stride: 3 * width },
        }
    }
}

/// What there is of keys.
#[derive(Clone, Copy)]
enum Of {
    Keys,
    Values,
}

/// Some queries of one head of one sequence, and the keys up to the last of them.
pub(super) struct Panel {
    /// First row of the sequence, among queries.
    pub(super) first: usize,
    /// First column of the head, among queries.
    pub(super) column: usize,
    /// Which queries of the sequence, or of this rank's chunk of it.
    pub(super) queries: Range<usize>,
    /// How many come before that chunk.
    pub(super) offset: usize,
    pub(super) keys: Keys,
    /// Where the sums of the head begin.
    pub(super) sums: usize,
    /// Columns of all heads.
    pub(super) width: usize,
    /// Columns of one head.
    pub(super) depth: usize,
    /// How many may work on a product.
    pub(super) threads: usize,
}

impl Panel {
    fn count(&self) -> usize {
        self.queries.len()
    }

    /// Number of keys.
    fn reach(&self) -> usize {
        self.offset + self.queries.end
    }

    /// Number of scores.
    pub(super) fn scores(&self) -> usize {
        self.count() * self.reach()
    }

    /// Where the sums of these queries are.
    pub(super) fn sums(&self) -> Range<usize> {
        self.sums + self.queries.start..self.sums + self.queries.end
    }

    /// Where the queries are among rows of queries, keys and values.
    fn query_at(&self) -> usize {
        (self.first + self.queries.start) * 3 * self.width + self.column
    }

    /// Where keys or values are.
    fn key_at(&self, of: Of) -> usize {
        let Keys { first, column, stride } = self.keys;
        first * stride + column + of as usize * self.width + self.column
    }

    fn queries<'a>(&self, sources: Sources<'a>) -> Matrix<'a> {
        Matrix::strided(&sources.queries[self.query_at()..], self.count(), self.depth, 3 * self.width)
    }

    fn keys<'a>(&self, sources: Sources<'a>, of: Of) -> Matrix<'a> {
        Matrix::strided(&sources.keys[self.key_at(of)..], self.reach(), self.depth, self.keys.stride)
    }

    fn queries_mut<'a>(&self, slopes: &'a mut Slopes<'_>) -> MatrixMut<'a> {
        MatrixMut::strided(&mut slopes.queries[self.query_at()..], self.count(), self.depth, 3 * self.width)
    }

    fn keys_mut<'a>(&self, slopes: &'a mut Slopes<'_>, of: Of) -> MatrixMut<'a> {
        MatrixMut::strided(&mut slopes.keys()[self.key_at(of)..], self.reach(), self.depth, self.keys.stride)
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
    pub(super) fn score(&self, sources: Sources<'_>, scores: &mut [f32]) {
        let (queries, keys) = (self.queries(sources), self.keys(sources, Of::Keys).t());
        matmul(self.matrix_mut(scores), 0.0, self.scale(), queries, keys, self.threads);
    }

    /// p v.
    pub(super) fn mix(&self, sources: Sources<'_>, shares: &[f32], output: &mut [f32]) {
        let (shares, values) = (self.matrix(shares), self.keys(sources, Of::Values));
        matmul(self.output_mut(output), 0.0, 1.0, shares, values, self.threads);
    }

    /// Rows of `scores`, each as what it has of no later keys, and the rest.
    fn rows<'a>(&self, scores: &'a mut [f32]) -> impl Iterator<Item = (&'a mut [f32], &'a mut [f32])> {
        let lengths = self.queries.clone().map(|query| self.offset + query + 1);
        scores.chunks_exact_mut(self.reach()).zip(lengths).map(|(row, length)| row.split_at_mut(length))
    }

    /// Scores become probabilities.
    pub(super) fn softmax(&self, scores: &mut [f32], log_sums: &mut [f32]) {
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
    pub(super) fn recall(&self, scores: &mut [f32], log_sums: &[f32]) {
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
    pub(super) fn differentiate(
        &self,
        sources: Sources<'_>,
        gradient: &[f32],
        shares: &[f32],
        slopes: &mut [f32],
        result: &mut Slopes<'_>,
    ) {
        let (dy, p, scale, threads) =
            (self.output(gradient), self.matrix(shares), self.scale(), self.threads);
        matmul(self.keys_mut(result, Of::Values), 1.0, 1.0, p.t(), dy, threads);
        matmul(self.matrix_mut(slopes), 0.0, 1.0, dy, self.keys(sources, Of::Values).t(), threads);
        self.through_softmax(shares, slopes);
        let ds = self.matrix(slopes);
        matmul(self.queries_mut(result), 0.0, scale, ds, self.keys(sources, Of::Keys), threads);
        matmul(self.keys_mut(result, Of::Keys), 1.0, scale, ds.t(), self.queries(sources), threads);
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
