//! Matrix products and attention.

use super::cublas::{Cublas, Factor};
use super::{Compute, at, at_mut, expect};
use crate::device::model::{Attend, Product};
use crate::device::{GpuError, View, ViewMut};
use cudarc::driver::sys;
use std::ffi::c_int;
use std::ptr::null_mut;

/// A matrix to read.
#[derive(Clone, Copy)]
pub struct Panel<'a> {
    data: &'a View<'a, f32>,
    rows: usize,
    columns: usize,
    is_transposed: bool,
}

/// A matrix to write, row after row.
pub struct PanelMut<'a> {
    data: ViewMut<'a, f32>,
    rows: usize,
    columns: usize,
}

impl<'a> Panel<'a> {
    /// Rows of `columns`, one after another.
    ///
    /// # Errors
    /// If `data` is not as long.
    pub fn new(data: &'a View<'a, f32>, rows: usize, columns: usize) -> Result<Self, GpuError> {
        expect(data.len(), rows * columns)?;
        Ok(Self { data, rows, columns, is_transposed: false })
    }

    /// The transpose.
    pub fn t(self) -> Self {
        let Self { data, rows, columns, is_transposed } = self;
        Self { data, rows: columns, columns: rows, is_transposed: !is_transposed }
    }

    /// How far apart neighbours are, of rows and of columns.
    fn strides(&self) -> Result<[u32; 2], GpuError> {
        Ok(if self.is_transposed { [1, narrow(self.rows)?] } else { [narrow(self.columns)?, 1] })
    }

    /// Its transpose, column after column.
    fn factor(&self) -> Result<Factor, GpuError> {
        let transposed = self.is_transposed;
        let leading = if transposed { self.rows } else { self.columns };
        // No column is shorter than one.
        Ok(Factor { address: at(self.data), transposed, leading: signed(leading.max(1))? })
    }
}

impl<'a> PanelMut<'a> {
    /// Rows of `columns`, one after another.
    ///
    /// # Errors
    /// If `data` is not as long.
    pub fn new(data: ViewMut<'a, f32>, rows: usize, columns: usize) -> Result<Self, GpuError> {
        expect(data.len(), rows * columns)?;
        Ok(Self { data, rows, columns })
    }
}

/// What attention is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Of each row.
    pub count: usize,
    /// Columns of each, at most 128.
    pub depth: usize,
    /// Rows of each sequence.
    pub sequence: usize,
}

impl Compute {
    /// `into` = `alpha` · `one` · `other` + `beta` · `into`; with `beta` 0 it is not read.
    ///
    /// # Errors
    /// If extents do not go together, and of the driver.
    pub fn matmul(
        &self,
        into: PanelMut<'_>,
        beta: f32,
        alpha: f32,
        one: Panel<'_>,
        other: Panel<'_>,
    ) -> Result<(), GpuError> {
        expect(one.rows, into.rows)?;
        expect(other.rows, one.columns)?;
        expect(other.columns, into.columns)?;
        if let Some(cublas) = &self.cublas {
            return self.multiply(cublas, into, [alpha, beta], one, other);
        }
        let arguments = Product {
            one: at(one.data),
            other: at(other.data),
            into: at_mut(&into.data),
            rows: narrow(into.rows)?,
            columns: narrow(into.columns)?,
            inner: narrow(one.columns)?,
            alpha,
            beta,
            stride: narrow(into.columns)?,
            one_strides: one.strides()?,
            other_strides: other.strides()?,
        };
        let tiles = (into.rows.div_ceil(64) * into.columns.div_ceil(64)) as u64;
        let memories = [into.data.as_view().memory, one.data.memory, other.data.memory];
        // SAFETY: pointers are to views of these extents.
        unsafe { self.launch("matmul", (tiles, Product::THREADS), &memories, &arguments) }
    }

    /// Column after column, all three are their transposes: into' = other' one'.
    fn multiply(
        &self,
        cublas: &Cublas,
        into: PanelMut<'_>,
        factors: [f32; 2],
        one: Panel<'_>,
        other: Panel<'_>,
    ) -> Result<(), GpuError> {
        if into.rows * into.columns == 0 {
            return Ok(());
        }
        let extents = [signed(into.columns)?, signed(into.rows)?, signed(one.columns)?];
        let (sides, to) = ([other.factor()?, one.factor()?], at_mut(&into.data));
        let memories = [into.data.as_view().memory, one.data.memory, other.data.memory];
        self.on_this_gpu(&memories)?;
        let mut outcome = Ok(());
        let enqueued = self.stream.enqueue(&memories, "cublasSgemm", |_| {
            // SAFETY: the stream's GPU is current, and the views have these extents.
            outcome = unsafe { cublas.multiply(extents, factors, sides, to) };
            sys::CUresult::CUDA_SUCCESS
        });
        enqueued.and(outcome)
    }

    /// Of each head, output = softmax(q kᵀ / √depth, of what is not later) v within each sequence of `input`: rows of queries | keys |
    /// values. `log_sums` gets a number for each row and head, for the way back.
    ///
    /// # Errors
    /// If lengths do not go together, and of the driver.
    pub fn attention(
        &self,
        heads: Heads,
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
        log_sums: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let mut arguments = heads.arguments(&input, output.len(), log_sums.len())?;
        (arguments.output, arguments.log_sums) = (at_mut(&output), at_mut(&log_sums));
        let (output, log_sums) = (output.as_view(), log_sums.as_view());
        let memories = [input.memory, output.memory, log_sums.memory];
        // SAFETY: pointers are to views of these extents.
        unsafe { self.launch("attention", heads.shape(&arguments), &memories, &arguments) }
    }

    /// The gradient of the input, into `slopes`, from that of the output, `of_output`; `room` is for as many numbers as `log_sums`.
    ///
    /// # Errors
    /// If lengths do not go together, and of the driver.
    pub fn attention_slopes(
        &self,
        heads: Heads,
        [input, log_sums, of_output]: [View<'_, f32>; 3],
        slopes: ViewMut<'_, f32>,
        room: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let mut arguments = heads.arguments(&input, of_output.len(), log_sums.len())?;
        expect(slopes.len(), input.len())?;
        expect(room.len(), log_sums.len())?;
        (arguments.output, arguments.log_sums) = (at(&of_output).cast_mut(), at(&log_sums).cast_mut());
        (arguments.slopes, arguments.means) = (at_mut(&slopes), at_mut(&room));
        let (slopes, room) = (slopes.as_view(), room.as_view());
        let memories = [input.memory, log_sums.memory, of_output.memory, slopes.memory, room.memory];
        let shape = heads.shape(&arguments);
        // SAFETY: pointers are to views of these extents; `slopes` and `room` alone are written.
        unsafe { self.launch("attention_query_slopes", shape, &memories, &arguments)? };
        // SAFETY: as above; `room` has been filled by the launch before it.
        unsafe { self.launch("attention_key_slopes", shape, &memories, &arguments) }
    }
}

impl Heads {
    fn arguments(self, input: &View<'_, f32>, output: usize, log_sums: usize) -> Result<Attend, GpuError> {
        let Self { count, depth, sequence } = self;
        if depth > Attend::DEPTH_MAX {
            return Err(GpuError::Length { found: depth, wanted: Attend::DEPTH_MAX });
        }
        let sequences = input.len().checked_div(3 * count * depth * sequence).unwrap_or(0);
        let rows = sequences * sequence;
        expect(input.len(), 3 * rows * count * depth)?;
        expect(output, rows * count * depth)?;
        expect(log_sums, rows * count)?;
        Ok(Attend {
            input: at(input),
            output: null_mut(),
            slopes: null_mut(),
            log_sums: null_mut(),
            means: null_mut(),
            sequences: narrow(sequences)?,
            length: narrow(sequence)?,
            heads: narrow(count)?,
            depth: narrow(depth)?,
            scale: 1.0 / (depth as f32).sqrt(),
            unused: 0,
        })
    }

    /// A block for each tile of 16 queries, or keys, of each head.
    fn shape(self, arguments: &Attend) -> (u64, u32) {
        let heads = u64::from(arguments.sequences) * self.count as u64;
        (heads * self.sequence.div_ceil(16) as u64, Attend::THREADS)
    }
}

/// As cuBLAS counts.
fn signed(extent: usize) -> Result<c_int, GpuError> {
    let wanted = c_int::MAX as usize;
    extent.try_into().map_err(|_| GpuError::Length { found: extent, wanted })
}

/// As the kernels count.
fn narrow(extent: usize) -> Result<u32, GpuError> {
    let wanted = u32::MAX as usize;
    extent.try_into().map_err(|_| GpuError::Length { found: extent, wanted })
}
