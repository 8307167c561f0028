//! Matrix products and attention.

use crate::device::compute::cublas::{Cublas, Extents, Factor};
use crate::device::compute::{Compute, as_device_mut_ptr, as_device_ptr, check_len};
use crate::device::model::{Attention, Matmul};
use crate::device::{GpuError, View, ViewMut};
use cudarc::driver::sys;
use std::ffi::c_int;
use std::ptr::null_mut;

/// A matrix to read.
#[derive(Clone, Copy)]
pub struct MatrixView<'a> {
    data: &'a View<'a, f32>,
    rows: usize,
    columns: usize,
    is_transposed: bool,
}

/// A matrix to write, row after row.
pub struct MatrixViewMut<'a> {
    data: ViewMut<'a, f32>,
    rows: usize,
    columns: usize,
}

impl<'a> MatrixView<'a> {
    /// Rows of `columns`, one after another.
    ///
    /// # Errors
    /// If `data` is not as long.
    pub fn new(data: &'a View<'a, f32>, rows: usize, columns: usize) -> Result<Self, GpuError> {
        check_len(data.len(), rows * columns)?;
        Ok(Self { data, rows, columns, is_transposed: false })
    }

    /// The transpose.
    pub fn t(self) -> Self {
        let Self { data, rows, columns, is_transposed } = self;
        Self { data, rows: columns, columns: rows, is_transposed: !is_transposed }
    }

    /// Returns the distances of neighbors, of rows and of columns.
    fn strides(&self) -> Result<[u32; 2], GpuError> {
        Ok(if self.is_transposed { [1, to_u32(self.rows)?] } else { [to_u32(self.columns)?, 1] })
    }

    /// Returns the transpose, column by column.
    fn factor(&self) -> Result<Factor, GpuError> {
        let transposed = self.is_transposed;
        let leading = if transposed { self.rows } else { self.columns };
        // No column is shorter than one.
        Ok(Factor { address: as_device_ptr(self.data), transposed, leading: to_c_int(leading.max(1))? })
    }
}

impl<'a> MatrixViewMut<'a> {
    /// Rows of `columns`, one after another.
    ///
    /// # Errors
    /// If `data` is not as long.
    pub fn new(data: ViewMut<'a, f32>, rows: usize, columns: usize) -> Result<Self, GpuError> {
        check_len(data.len(), rows * columns)?;
        Ok(Self { data, rows, columns })
    }
}

/// Shape of the input of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Heads of each row.
    pub count: usize,
    /// Columns of each, at most 128.
    pub depth: usize,
    /// Rows of each sequence.
    pub sequence: usize,
}

impl Compute {
    /// Computes `into` = `alpha` · `one` · `other` + `beta` · `into`. With `beta` 0 it is not read.
    ///
    /// # Errors
    /// Extents do not match, or the driver fails.
    pub fn matmul(
        &self,
        into: MatrixViewMut<'_>,
        beta: f32,
        alpha: f32,
        one: MatrixView<'_>,
        other: MatrixView<'_>,
    ) -> Result<(), GpuError> {
        check_len(one.rows, into.rows)?;
        check_len(other.rows, one.columns)?;
        check_len(other.columns, into.columns)?;
        if let Some(cublas) = &self.cublas {
            return self.multiply(cublas, into, alpha, beta, one, other);
        }
        let arguments = Matmul {
            one: as_device_ptr(one.data),
            other: as_device_ptr(other.data),
            into: as_device_mut_ptr(&into.data),
            rows: to_u32(into.rows)?,
            columns: to_u32(into.columns)?,
            inner: to_u32(one.columns)?,
            alpha,
            beta,
            stride: to_u32(into.columns)?,
            one_strides: one.strides()?,
            other_strides: other.strides()?,
        };
        let tiles = (into.rows.div_ceil(64) * into.columns.div_ceil(64)) as u64;
        let memories = [into.data.as_view().memory, one.data.memory, other.data.memory];
        // SAFETY: pointers are to views of these extents.
        unsafe { self.launch("matmul", (tiles, Matmul::THREADS), &memories, &arguments) }
    }

    /// Column after column, all three are their transposes: product' = right' left'.
    fn multiply(
        &self,
        cublas: &Cublas,
        product: MatrixViewMut<'_>,
        alpha: f32,
        beta: f32,
        left: MatrixView<'_>,
        right: MatrixView<'_>,
    ) -> Result<(), GpuError> {
        if product.rows * product.columns == 0 {
            return Ok(());
        }
        let extents = Extents {
            rows: to_c_int(product.columns)?,
            columns: to_c_int(product.rows)?,
            inner: to_c_int(left.columns)?,
        };
        let (first, second) = (right.factor()?, left.factor()?);
        let address = as_device_mut_ptr(&product.data);
        let memories = [product.data.as_view().memory, left.data.memory, right.data.memory];
        self.on_this_gpu(&memories)?;
        let mut outcome = Ok(());
        let enqueued = self.stream.enqueue(&memories, "cublasSgemm", |_| {
            // SAFETY: the stream's GPU is current, and the views have these extents.
            outcome = unsafe { cublas.multiply(extents, alpha, beta, first, second, address) };
            sys::CUresult::CUDA_SUCCESS
        });
        enqueued.and(outcome)
    }

    /// Computes output = softmax(q kᵀ / √depth) v of each head, causally within each sequence of
    /// `input`: rows of queries | keys | values. `log_sums` gets a number for each row and head,
    /// for the backward pass.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn attention(
        &self,
        heads: AttentionShape,
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
        log_sums: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let mut arguments = heads.arguments(&input, output.len(), log_sums.len())?;
        (arguments.output, arguments.log_sums) = (as_device_mut_ptr(&output), as_device_mut_ptr(&log_sums));
        let (output, log_sums) = (output.as_view(), log_sums.as_view());
        let memories = [input.memory, output.memory, log_sums.memory];
        // SAFETY: pointers are to views of these extents.
        unsafe { self.launch("attention", heads.shape(&arguments), &memories, &arguments) }
    }

    /// Computes the gradient of the input, into `grads`, from the gradient of the output,
    /// `of_output`. `room` has as many numbers as `log_sums`.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn attention_backward(
        &self,
        heads: AttentionShape,
        [input, log_sums, of_output]: [View<'_, f32>; 3],
        grads: ViewMut<'_, f32>,
        room: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let mut arguments = heads.arguments(&input, of_output.len(), log_sums.len())?;
        check_len(grads.len(), input.len())?;
        check_len(room.len(), log_sums.len())?;
        (arguments.output, arguments.log_sums) =
            (as_device_ptr(&of_output).cast_mut(), as_device_ptr(&log_sums).cast_mut());
        (arguments.grads, arguments.means) = (as_device_mut_ptr(&grads), as_device_mut_ptr(&room));
        let (grads, room) = (grads.as_view(), room.as_view());
        let memories = [input.memory, log_sums.memory, of_output.memory, grads.memory, room.memory];
        let shape = heads.shape(&arguments);
        // SAFETY: pointers are to views of these extents; `grads` and `room` alone are written.
        unsafe { self.launch("attention_backward_q", shape, &memories, &arguments)? };
        // SAFETY: as above; `room` has been filled by the launch before it.
        unsafe { self.launch("attention_backward_kv", shape, &memories, &arguments) }
    }
}

impl AttentionShape {
    fn arguments(self, input: &View<'_, f32>, output: usize, log_sums: usize) -> Result<Attention, GpuError> {
        let Self { count, depth, sequence } = self;
        if depth > Attention::DEPTH_MAX {
            return Err(GpuError::LengthMismatch { found: depth, wanted: Attention::DEPTH_MAX });
        }
        let sequences = input.len().checked_div(3 * count * depth * sequence).unwrap_or(0);
        let rows = sequences * sequence;
        check_len(input.len(), 3 * rows * count * depth)?;
        check_len(output, rows * count * depth)?;
        check_len(log_sums, rows * count)?;
        Ok(Attention {
            input: as_device_ptr(input),
            output: null_mut(),
            grads: null_mut(),
            log_sums: null_mut(),
            means: null_mut(),
            sequences: to_u32(sequences)?,
            length: to_u32(sequence)?,
            heads: to_u32(count)?,
            depth: to_u32(depth)?,
            scale: 1.0 / (depth as f32).sqrt(),
            unused: 0,
        })
    }

    /// Launches a block for each tile of 16 queries, or keys, of each head.
    fn shape(self, arguments: &Attention) -> (u64, u32) {
        let heads = u64::from(arguments.sequences) * self.count as u64;
        (heads * self.sequence.div_ceil(16) as u64, Attention::THREADS)
    }
}

/// Converts an extent to the integer type of cuBLAS.
fn to_c_int(extent: usize) -> Result<c_int, GpuError> {
    let wanted = c_int::MAX as usize;
    extent.try_into().map_err(|_| GpuError::LengthMismatch { found: extent, wanted })
}

/// Converts an extent to the integer type of the kernels.
fn to_u32(extent: usize) -> Result<u32, GpuError> {
    let wanted = u32::MAX as usize;
    extent.try_into().map_err(|_| GpuError::LengthMismatch { found: extent, wanted })
}
