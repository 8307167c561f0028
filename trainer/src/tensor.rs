//! Numbers in rows: what flows between modules.

use crate::memory::{Class, Floats, Memory};
use std::ops::Range;

/// A dense matrix of activations: `rows` (tokens, samples) by `columns` (features), row after row.
///
/// Modules that see more structure (sequences, heads, images) know it themselves.
#[derive(Debug)]
pub struct Tensor {
    data: Floats,
    rows: usize,
    columns: usize,
}

impl Tensor {
    /// Numbers that mean nothing yet.
    pub fn new(memory: &Memory, rows: usize, columns: usize) -> Self {
        Self { data: memory.take(Class::Activations, rows * columns), rows, columns }
    }

    /// All zero.
    pub fn zeros(memory: &Memory, rows: usize, columns: usize) -> Self {
        Self { data: memory.zeros(Class::Activations, rows * columns), rows, columns }
    }

    /// The numbers of `data`.
    ///
    /// # Panics
    /// If their number is not `rows * columns`.
    pub fn from(memory: &Memory, rows: usize, columns: usize, data: &[f32]) -> Self {
        let mut tensor = Self::new(memory, rows, columns);
        tensor.data_mut().copy_from_slice(data);
        tensor
    }

    /// A copy.
    pub fn copy(&self) -> Self {
        Self { data: self.data.copy(), rows: self.rows, columns: self.columns }
    }

    /// A copy of some rows.
    pub fn part(&self, memory: &Memory, rows: Range<usize>) -> Self {
        let of = rows.start * self.columns..rows.end * self.columns;
        Self::from(memory, rows.len(), self.columns, &self.data[of])
    }

    /// Puts other numbers in some rows.
    pub fn put(&mut self, rows: Range<usize>, part: &Self) {
        self.data[rows.start * self.columns..rows.end * self.columns].copy_from_slice(&part.data);
    }

    /// Rows: tokens, or samples.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All numbers, row after row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All numbers, to change.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.columns..][..self.columns]
    }

    /// One row, to change.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.columns..][..self.columns]
    }

    /// The same numbers in other rows.
    ///
    /// # Panics
    /// If their number would change.
    pub fn reshape(self, rows: usize, columns: usize) -> Self {
        assert_eq!(rows * columns, self.data.len(), "a reshape keeps every number");
        Self { data: self.data, rows, columns }
    }
}
