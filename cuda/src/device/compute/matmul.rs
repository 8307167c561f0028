//! Matrix products, by cuBLAS or by a kernel.

use crate::device::compute::cublas::{Cublas, Extents, Factor};
use crate::device::compute::{Compute, as_device_mut_ptr, as_device_ptr, check_len, to_u32};
use crate::device::model::Matmul;
use crate::device::{GpuError, View, ViewMut};
use cudarc::driver::sys;
use std::ffi::c_int;

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
}

/// Converts an extent to the integer type of cuBLAS.
fn to_c_int(extent: usize) -> Result<c_int, GpuError> {
    let wanted = c_int::MAX as usize;
    extent.try_into().map_err(|_| GpuError::LengthMismatch { found: extent, wanted })
}
