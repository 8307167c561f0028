//! Functions of rows: biases, norms, tables, cross entropy.

use super::{Compute, Indices, as_device_mut_ptr, as_device_ptr, check_len, rows_of};
use crate::device::model::{CrossEntropy, EmbeddingLookup, Normalize, Rows};
use crate::device::{GpuError, View, ViewMut};
use std::ptr::{null, null_mut};

/// Kinds of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Normalizes to mean 0 and deviation 1.
    Layer,
    /// Normalizes to root mean square 1.
    Rms,
}

impl Norm {
    /// Numbers that forward leaves of each row for backward.
    pub fn moments_per_row(self) -> usize {
        match self {
            Self::Layer => 2,
            Self::Rms => 1,
        }
    }

    /// Forward, the gradient of the gain, that of the input.
    fn kernels(self) -> [&'static str; 3] {
        match self {
            Self::Layer => ["layer_norm", "layer_norm_backward_gain", "layer_norm_backward"],
            Self::Rms => ["rms_norm", "rms_norm_backward_gain", "rms_norm_backward"],
        }
    }
}

impl Compute {
    /// Sets every row of `to` to `row`.
    ///
    /// # Errors
    /// `to` has no whole number of rows, or the driver fails.
    pub fn fill_rows(&self, to: ViewMut<'_, f32>, row: View<'_, f32>) -> Result<(), GpuError> {
        let arguments = rows_arguments(as_device_mut_ptr(&to), to.len(), as_device_ptr(&row), row.len())?;
        let (target, shape) = (to.as_view(), self.linear(4 * to.len()));
        // SAFETY: both pointers are to views, of these rows and columns.
        unsafe { self.launch("fill_rows", shape, &[target.memory, row.memory], &arguments) }
    }

    /// Adds `row` to every row of `to`.
    ///
    /// # Errors
    /// `to` has no whole number of rows, or the driver fails.
    pub fn add_to_rows(&self, to: ViewMut<'_, f32>, row: View<'_, f32>) -> Result<(), GpuError> {
        let arguments = rows_arguments(as_device_mut_ptr(&to), to.len(), as_device_ptr(&row), row.len())?;
        let (target, shape) = (to.as_view(), self.linear(4 * to.len()));
        // SAFETY: both pointers are to views, of these rows and columns.
        unsafe { self.launch("add_to_rows", shape, &[target.memory, row.memory], &arguments) }
    }

    /// Adds every row of `rows` to `into`.
    ///
    /// # Errors
    /// `rows` has no whole number of rows as long as `into`, or the driver fails.
    pub fn add_rows(&self, into: ViewMut<'_, f32>, rows: View<'_, f32>) -> Result<(), GpuError> {
        let arguments =
            rows_arguments(as_device_mut_ptr(&into), rows.len(), as_device_ptr(&rows), into.len())?;
        let (sums, shape) = (into.as_view(), self.by_columns(into.len()));
        // SAFETY: both pointers are to views, of these rows and columns.
        unsafe { self.launch("add_rows", shape, &[sums.memory, rows.memory], &arguments) }
    }

    /// Computes y = (x - mean) / √(variance + ε) · gain + bias of each row. An RMS norm has no mean
    /// and no bias.
    ///
    /// # Errors
    /// Lengths do not match, a bias is missing or superfluous, or the driver fails.
    pub fn normalize(
        &self,
        [input, gain]: [View<'_, f32>; 2],
        bias: Option<View<'_, f32>>,
        epsilon: f32,
        output: ViewMut<'_, f32>,
        moments: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let norm = if bias.is_some() { Norm::Layer } else { Norm::Rms };
        let rows = rows_of(input.len(), gain.len())?;
        check_len(output.len(), input.len())?;
        check_len(moments.len(), norm.moments_per_row() * rows)?;
        check_len(bias.as_ref().map_or(gain.len(), View::len), gain.len())?;
        let arguments = Normalize {
            values: as_device_mut_ptr(&output),
            gain: as_device_ptr(&gain),
            bias: bias.as_ref().map_or(null(), as_device_ptr),
            moments: as_device_mut_ptr(&moments),
            epsilon,
            ..normalize_arguments(&input, rows, gain.len())
        };
        let (output, moments) = (output.as_view(), moments.as_view());
        let bias = bias.as_ref().map_or(gain.memory, |bias| bias.memory);
        let memories = [input.memory, gain.memory, bias, output.memory, moments.memory];
        // SAFETY: pointers are to views, of these rows and columns; RMS norms read no bias.
        unsafe { self.launch(norm.kernels()[0], self.by_rows(rows), &memories, &arguments) }
    }

    /// Adds the sum over rows of dy x̂ to `of_gain`. Call it before
    /// [`Compute::normalize_backward`].
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn normalize_backward_gain(
        &self,
        norm: Norm,
        [input, moments, grads]: [View<'_, f32>; 3],
        of_gain: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let rows = rows_of(input.len(), of_gain.len())?;
        check_len(grads.len(), input.len())?;
        check_len(moments.len(), norm.moments_per_row() * rows)?;
        let arguments = Normalize {
            values: as_device_ptr(&grads).cast_mut(),
            moments: as_device_ptr(&moments).cast_mut(),
            of_gain: as_device_mut_ptr(&of_gain),
            ..normalize_arguments(&input, rows, of_gain.len())
        };
        let (of_gain, shape) = (of_gain.as_view(), self.by_columns(of_gain.len()));
        let memories = [input.memory, moments.memory, grads.memory, of_gain.memory];
        // SAFETY: pointers are to views of these rows and columns. The kernel writes to `of_gain`
        // alone.
        unsafe { self.launch(norm.kernels()[1], shape, &memories, &arguments) }
    }

    /// `grads` of the output become those of the input.
    ///
    /// # Errors
    /// If lengths do not go together, and of the driver.
    pub fn normalize_backward(
        &self,
        norm: Norm,
        [input, moments, gain]: [View<'_, f32>; 3],
        grads: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let rows = rows_of(input.len(), gain.len())?;
        check_len(grads.len(), input.len())?;
        check_len(moments.len(), norm.moments_per_row() * rows)?;
        let arguments = Normalize {
            values: as_device_mut_ptr(&grads),
            gain: as_device_ptr(&gain),
            moments: as_device_ptr(&moments).cast_mut(),
            ..normalize_arguments(&input, rows, gain.len())
        };
        let grads = grads.as_view();
        let memories = [input.memory, moments.memory, gain.memory, grads.memory];
        // SAFETY: pointers are to views of these rows and columns. The kernel writes to `grads`
        // alone.
        unsafe { self.launch(norm.kernels()[2], self.by_rows(rows), &memories, &arguments) }
    }

    /// Copies row `indices[i]` of `table` to row i of `to`, and zeros for the padding index. The
    /// table has as many rows as the indices' limit.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn embed(
        &self,
        to: ViewMut<'_, f32>,
        table: View<'_, f32>,
        indices: &Indices,
    ) -> Result<(), GpuError> {
        let look = lookup_arguments(
            as_device_ptr(&table).cast_mut(),
            table.len(),
            as_device_mut_ptr(&to),
            to.len(),
            indices,
        )?;
        let (target, shape) = (to.as_view(), self.linear(4 * to.len()));
        let memories = [target.memory, table.memory, indices.numbers.view(..).memory];
        // SAFETY: pointers are to views. All indices but the padding index are rows of the table,
        // which is only read.
        unsafe { self.launch("embed", shape, &memories, &look) }
    }

    /// Adds row i of `rows` to row `indices[i]` of `table`, and skips the padding index.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn embed_backward(
        &self,
        table: ViewMut<'_, f32>,
        rows: View<'_, f32>,
        indices: &Indices,
    ) -> Result<(), GpuError> {
        let look = lookup_arguments(
            as_device_mut_ptr(&table),
            table.len(),
            as_device_ptr(&rows).cast_mut(),
            rows.len(),
            indices,
        )?;
        let table = table.as_view();
        let memories = [table.memory, rows.memory, indices.numbers.view(..).memory];
        // SAFETY: pointers are to views. All indices but the padding index are rows of the table.
        // `rows` is only read.
        unsafe { self.launch("embed_backward", self.by_rows(indices.below), &memories, &look) }
    }

    /// Turns rows of logits into the gradient of `share` times the sum of their losses, which are
    /// written to `losses`.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn cross_entropy(
        &self,
        logits: ViewMut<'_, f32>,
        targets: &Indices,
        losses: ViewMut<'_, f32>,
        share: f32,
    ) -> Result<(), GpuError> {
        let (rows, classes) = (targets.len(), targets.below);
        check_len(logits.len(), rows * classes)?;
        check_len(losses.len(), rows)?;
        let numbers = targets.numbers.view(..);
        let arguments = CrossEntropy {
            logits: as_device_mut_ptr(&logits),
            targets: as_device_ptr(&numbers),
            losses: as_device_mut_ptr(&losses),
            rows: rows as u64,
            classes: classes as u64,
            share,
            ignored: targets.ignored.unwrap_or(0),
            ignores: targets.ignored.is_some().into(),
            unused: 0,
        };
        let (logits, losses) = (logits.as_view(), losses.as_view());
        let memories = [logits.memory, numbers.memory, losses.memory];
        // SAFETY: pointers are to views of these extents, and all targets that count are classes.
        unsafe { self.launch("cross_entropy", self.by_rows(rows), &memories, &arguments) }
    }
}

fn rows_arguments(
    target: *mut f32,
    count: usize,
    source: *const f32,
    columns: usize,
) -> Result<Rows, GpuError> {
    let rows = rows_of(count, columns)?;
    Ok(Rows { to: target, from: source, rows: rows as u64, columns: columns as u64 })
}

/// Returns arguments with only the input set.
fn normalize_arguments(input: &View<'_, f32>, rows: usize, width: usize) -> Normalize {
    Normalize {
        input: as_device_ptr(input),
        values: null_mut(),
        gain: null(),
        bias: null(),
        moments: null_mut(),
        of_gain: null_mut(),
        rows: rows as u64,
        width: width as u64,
        epsilon: 0.0,
        unused: 0,
    }
}

fn lookup_arguments(
    table: *mut f32,
    table_len: usize,
    rows: *mut f32,
    rows_len: usize,
    indices: &Indices,
) -> Result<EmbeddingLookup, GpuError> {
    let width = table_len.checked_div(indices.below).unwrap_or(0);
    check_len(table_len, indices.below * width)?;
    check_len(rows_len, indices.len() * width)?;
    let numbers = as_device_ptr(&indices.numbers.view(..));
    Ok(EmbeddingLookup {
        table,
        indices: numbers,
        rows,
        count: indices.len() as u64,
        width: width as u64,
        ignored: indices.ignored.unwrap_or(0),
        ignores: indices.ignored.is_some().into(),
    })
}
