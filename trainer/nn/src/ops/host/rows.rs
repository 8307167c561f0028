//! Sums of rows, rows of tables, and matrix products.

use super::vector::{self, vectorized};
use crate::ops::{Host, Mat, NOT_LOCAL};
use unisono_matmul::{Matrix, MatrixMut};

impl Host {
    pub(crate) fn matmul(
        &self,
        output: Mat<&mut [f32]>,
        beta: f32,
        alpha: f32,
        left: Mat<&[f32]>,
        right: Mat<&[f32]>,
    ) {
        let output = MatrixMut::new(output.values, output.rows, output.columns);
        unisono_matmul::matmul(output, beta, alpha, matrix(left), matrix(right), self.threads);
    }

    pub(crate) fn fill_rows(&self, rows: &mut [f32], row: &[f32]) {
        rows.chunks_exact_mut(row.len()).for_each(|target| target.copy_from_slice(row));
    }

    pub(crate) fn add_to_rows(&self, rows: &mut [f32], row: &[f32]) {
        rows.chunks_exact_mut(row.len()).for_each(|sum| vector::add(sum, row));
    }

    pub(crate) fn add_rows(&self, sum: &mut [f32], rows: &[f32]) {
        vector::add_rows(sum, rows);
    }

    pub(crate) fn add(&self, sum: &mut [f32], values: &[f32]) {
        vector::add(sum, values);
    }

    pub(crate) fn scale(&self, values: &mut [f32], factor: f32) {
        vector::scale(values, factor);
    }

    pub(crate) fn embed(&self, rows: &mut [f32], table: &[f32], indices: &[u32]) {
        let width = rows.len() / indices.len().max(1);
        // Chunks of length 0 would panic, although there is nothing to copy.
        for (row, &index) in rows.chunks_exact_mut(width.max(1)).zip(indices) {
            match index {
                NOT_LOCAL => row.fill(0.0),
                _ => row.copy_from_slice(&table[index as usize * width..][..width]),
            }
        }
    }

    pub(crate) fn embed_backward(&self, table: &mut [f32], rows: &[f32], indices: &[u32]) {
        let width = rows.len() / indices.len().max(1);
        // The gradient of a row that another rank has is added there.
        let rows = rows.chunks_exact(width.max(1)).zip(indices).filter(|row| *row.1 != NOT_LOCAL);
        vectorized(
            #[inline(always)]
            || {
                for (row, index) in rows {
                    let sums = &mut table[*index as usize * width..][..width];
                    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
            },
        );
    }
}

fn matrix(operand: Mat<&[f32]>) -> Matrix<'_> {
    let matrix = Matrix::new(operand.values, operand.rows, operand.columns);
    if operand.is_transposed { matrix.t() } else { matrix }
}
