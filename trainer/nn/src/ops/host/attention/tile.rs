//! Tile of attention: some queries of one head, and the keys before them.

use crate::ops::host::vector::{exp, exp_shifted, max_value, sum, vectorized};
use std::ops::Range;
use unisono_matmul::{Matrix, MatrixMut, matmul};

/// Number of queries per tile.
pub(crate) const TILE_ROWS: usize = 64;

#[cfg(any(test, feature = "count-scores"))]
thread_local! {
    /// Number of scores that this thread has computed.
    pub(crate) static COMPUTED_SCORES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Sources of queries, and of keys and values: the same rows, or those of one whole sequence.
#[derive(Clone, Copy)]
pub(crate) struct QkvInputs<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
}

/// Destinations of gradients: the same rows, unless `keys` holds those of keys and values.
pub(crate) struct Grads<'a> {
    pub(crate) queries: &'a mut [f32],
    pub(crate) keys: Option<&'a mut [f32]>,
}

impl Grads<'_> {
    fn keys(&mut self) -> &mut [f32] {
        self.keys.as_deref_mut().unwrap_or(self.queries)
    }
}

/// Numbers of columns of queries, and of keys or values.
#[derive(Clone, Copy)]
pub(crate) struct QkvColumns {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
}

impl QkvColumns {
    /// Returns the number of columns of queries, keys and values.
    pub(crate) fn all(self) -> usize {
        self.queries + 2 * self.keys
    }
}

/// Location of the keys and values of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct KvLayout {
    /// First row.
    first: usize,
    /// First column.
    column: usize,
    /// Number of columns per row.
    stride: usize,
}

impl KvLayout {
    /// Returns the location: gathered rows without queries, or after the queries in rows from
    /// `first` on.
    pub(crate) fn new(are_gathered: bool, first: usize, columns: QkvColumns) -> Self {
        match are_gathered {
            true => Self { first: 0, column: 0, stride: 2 * columns.keys },
            false => Self { first, column: columns.queries, stride: columns.all() },
        }
    }
}

/// Selects keys or values.
#[derive(Clone, Copy)]
enum KvPart {
    Keys,
    Values,
}

/// Some queries of one head of one sequence, and the keys that the last of them attends to.
pub(crate) struct Tile<'a> {
    /// First row of the sequence among the queries.
    pub(crate) first: usize,
    /// First column of the head among the queries.
    pub(crate) column: usize,
    /// First column of its head among the keys.
    pub(crate) key_column: usize,
    /// Range of queries in the sequence, or in this rank's chunk of it.
    pub(crate) queries: Range<usize>,
    /// Number of keys that each of them attends to.
    pub(crate) visible: &'a [usize],
    pub(crate) keys: KvLayout,
    /// Offset of the head's log-sums.
    pub(crate) sums_offset: usize,
    /// Numbers of columns of all heads.
    pub(crate) columns: QkvColumns,
    /// Number of columns of one head.
    pub(crate) depth: usize,
    /// Number of threads for a product.
    pub(crate) threads: usize,
}

impl Tile<'_> {
    fn count(&self) -> usize {
        self.queries.len()
    }

    /// Returns the number of keys.
    pub(crate) fn key_count(&self) -> usize {
        self.visible.last().copied().unwrap_or(0)
    }

    /// Returns the number of scores.
    pub(crate) fn scores(&self) -> usize {
        self.count() * self.key_count()
    }

    /// Returns the range of log-sums of these queries.
    pub(crate) fn sums_range(&self) -> Range<usize> {
        self.sums_offset + self.queries.start..self.sums_offset + self.queries.end
    }

    /// Returns the offset of the queries among rows of queries, keys and values.
    fn query_at(&self) -> usize {
        (self.first + self.queries.start) * self.columns.all() + self.column
    }

    /// Returns the offset of keys or values.
    fn key_at(&self, part: KvPart) -> usize {
        let KvLayout { first, column, stride } = self.keys;
        first * stride + column + part as usize * self.columns.keys + self.key_column
    }

    fn queries<'a>(&self, sources: QkvInputs<'a>) -> Matrix<'a> {
        Matrix::strided(&sources.queries[self.query_at()..], self.count(), self.depth, self.columns.all())
    }

    fn keys<'a>(&self, sources: QkvInputs<'a>, part: KvPart) -> Matrix<'a> {
        Matrix::strided(&sources.keys[self.key_at(part)..], self.key_count(), self.depth, self.keys.stride)
    }

    fn queries_mut<'a>(&self, slopes: &'a mut Grads<'_>) -> MatrixMut<'a> {
        MatrixMut::strided(
            &mut slopes.queries[self.query_at()..],
            self.count(),
            self.depth,
            self.columns.all(),
        )
    }

    fn keys_mut<'a>(&self, slopes: &'a mut Grads<'_>, part: KvPart) -> MatrixMut<'a> {
        MatrixMut::strided(
            &mut slopes.keys()[self.key_at(part)..],
            self.key_count(),
            self.depth,
            self.keys.stride,
        )
    }

    fn output_at(&self) -> usize {
        (self.first + self.queries.start) * self.columns.queries + self.column
    }

    fn output<'a>(&self, output: &'a [f32]) -> Matrix<'a> {
        Matrix::strided(&output[self.output_at()..], self.count(), self.depth, self.columns.queries)
    }

    fn output_mut<'a>(&self, output: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::strided(&mut output[self.output_at()..], self.count(), self.depth, self.columns.queries)
    }

    fn matrix<'a>(&self, scores: &'a [f32]) -> Matrix<'a> {
        Matrix::new(scores, self.count(), self.key_count())
    }

    fn matrix_mut<'a>(&self, scores: &'a mut [f32]) -> MatrixMut<'a> {
        MatrixMut::new(scores, self.count(), self.key_count())
    }

    fn scale(&self) -> f32 {
        1.0 / (self.depth as f32).sqrt()
    }

    /// Computes q kᵀ / √d.
    pub(crate) fn score(&self, sources: QkvInputs<'_>, scores: &mut [f32]) {
        #[cfg(any(test, feature = "count-scores"))]
        COMPUTED_SCORES.set(COMPUTED_SCORES.get() + self.scores());
        let (queries, keys) = (self.queries(sources), self.keys(sources, KvPart::Keys).t());
        matmul(self.matrix_mut(scores), 0.0, self.scale(), queries, keys, self.threads);
    }

    /// Computes p v.
    pub(crate) fn weighted_sum(&self, sources: QkvInputs<'_>, shares: &[f32], output: &mut [f32]) {
        let (shares, values) = (self.matrix(shares), self.keys(sources, KvPart::Values));
        matmul(self.output_mut(output), 0.0, 1.0, shares, values, self.threads);
    }

    /// Splits each row of `scores` into visible and later keys.
    fn rows<'a>(&self, scores: &'a mut [f32]) -> impl Iterator<Item = (&'a mut [f32], &'a mut [f32])> {
        let rows = scores.chunks_exact_mut(self.key_count()).zip(self.visible);
        rows.map(|(row, &length)| row.split_at_mut(length))
    }

    /// Writes the output of queries without keys.
    pub(crate) fn attend_to_nothing(&self, output: &mut [f32], log_sums: &mut [f32]) {
        let rows = output[self.output_at()..].chunks_mut(self.columns.queries).take(self.count());
        rows.for_each(|row| row[..self.depth].fill(0.0));
        log_sums.fill(f32::NEG_INFINITY);
    }

    /// Replaces scores by probabilities. A query without keys has none.
    pub(crate) fn softmax(&self, scores: &mut [f32], log_sums: &mut [f32]) {
        vectorized(
            #[inline(always)]
            || {
                for ((row, later), log_sum) in self.rows(scores).zip(log_sums) {
                    // The product with the values takes all keys of the tile, also those after a
                    // query.
                    later.fill(0.0);
                    if row.is_empty() {
                        *log_sum = f32::NEG_INFINITY;
                        continue;
                    }
                    // The largest score is subtracted, so that no exponential overflows.
                    let largest = max_value(row);
                    let sum = exp_shifted(row, largest);
                    let share = 1.0 / sum;
                    row.iter_mut().for_each(|value| *value *= share);
                    *log_sum = largest + sum.ln();
                }
            },
        );
    }

    /// Replaces scores by the probabilities of forward.
    pub(crate) fn recompute_softmax(&self, scores: &mut [f32], log_sums: &[f32]) {
        vectorized(
            #[inline(always)]
            || {
                for ((row, later), log_sum) in self.rows(scores).zip(log_sums) {
                    row.iter_mut().for_each(|value| *value = exp(*value - log_sum));
                    later.fill(0.0);
                }
            },
        );
    }

    /// Adds the gradients of queries, keys and values to `result`, from the probabilities p and the
    /// gradient dy: dv = pᵀ dy; with dp = dy vᵀ, ds = p (dp - sum of p dp); dq = ds k, dk = dsᵀ q.
    ///
    /// If the queries also attend to other keys, `dots` has the sums over all keys: dy · y.
    pub(crate) fn backward(
        &self,
        sources: QkvInputs<'_>,
        gradient: &[f32],
        (shares, dots): (&[f32], Option<&[f32]>),
        slopes: &mut [f32],
        result: &mut Grads<'_>,
    ) {
        let (dy, p, scale, threads) =
            (self.output(gradient), self.matrix(shares), self.scale(), self.threads);
        matmul(self.keys_mut(result, KvPart::Values), 1.0, 1.0, p.t(), dy, threads);
        matmul(self.matrix_mut(slopes), 0.0, 1.0, dy, self.keys(sources, KvPart::Values).t(), threads);
        self.softmax_backward(shares, dots, slopes);
        let ds = self.matrix(slopes);
        matmul(
            self.queries_mut(result),
            // If the queries attend to other keys too, their gradient has parts from several calls.
            if dots.is_some() { 1.0 } else { 0.0 },
            scale,
            ds,
            self.keys(sources, KvPart::Keys),
            threads,
        );
        matmul(self.keys_mut(result, KvPart::Keys), 1.0, scale, ds.t(), self.queries(sources), threads);
    }

    /// Replaces the gradients of probabilities by those of scores.
    fn softmax_backward(&self, shares: &[f32], dots: Option<&[f32]>, slopes: &mut [f32]) {
        let rows = slopes.chunks_exact_mut(self.key_count()).zip(shares.chunks_exact(self.key_count()));
        vectorized(
            #[inline(always)]
            || {
                for (row, (slopes, shares)) in rows.enumerate() {
                    let mean = dots.map_or_else(|| sum(shares, slopes, |p, dp| p * dp), |dots| dots[row]);
                    slopes.iter_mut().zip(shares).for_each(|(slope, share)| *slope = share * (*slope - mean));
                }
            },
        );
    }
}
