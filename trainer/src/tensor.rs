//! Numbers in rows: what flows between modules.

use crate::allocator::{AllocClass, Allocator, F32Vec};
use crate::device::DeviceVec;
use crate::error::Result;
use crate::flat::ProcessGroup;
use crate::nn::vector;
use std::ops::Range;
use unisono::{ReduceOp, Sum};
use unisono_cuda::device::{View, ViewMut};

/// A dense matrix of activations: `rows` (tokens, samples) by `columns` (features), row after row.
///
/// Modules that see more structure (sequences, heads, images) know it themselves. In a pass on a GPU the numbers lie in its memory: what
/// modules do there goes by [`Tensor::view`], everything else by [`Tensor::data`].
#[derive(Debug)]
pub struct Tensor {
    data: TensorData,
    rows: usize,
    columns: usize,
}

#[derive(Debug)]
enum TensorData {
    Host(F32Vec),
    Device(DeviceVec),
}

impl Tensor {
    /// Numbers that mean nothing yet.
    pub fn new(memory: &Allocator, rows: usize, columns: usize) -> Self {
        Self { data: TensorData::Host(memory.alloc(AllocClass::Activations, rows * columns)), rows, columns }
    }

    /// All zero.
    pub fn zeros(memory: &Allocator, rows: usize, columns: usize) -> Self {
        Self { data: TensorData::Host(memory.zeros(AllocClass::Activations, rows * columns)), rows, columns }
    }

    /// In memory of a GPU.
    pub(crate) fn on_device(numbers: DeviceVec, rows: usize, columns: usize) -> Self {
        Self { data: TensorData::Device(numbers), rows, columns }
    }

    /// The numbers of `data`.
    ///
    /// # Panics
    /// If their number is not `rows * columns`.
    pub fn from_slice(memory: &Allocator, rows: usize, columns: usize, data: &[f32]) -> Self {
        let mut tensor = Self::new(memory, rows, columns);
        tensor.data_mut().copy_from_slice(data);
        tensor
    }

    /// A copy.
    ///
    /// # Errors
    /// Of the driver, if it is in memory of a GPU.
    pub fn copy(&self) -> Result<Self> {
        let data = match &self.data {
            TensorData::Host(floats) => TensorData::Host(floats.copy()),
            TensorData::Device(numbers) => TensorData::Device(numbers.copy()?),
        };
        Ok(Self { data, rows: self.rows, columns: self.columns })
    }

    /// Adds the numbers of `other`.
    ///
    /// # Errors
    /// Of the driver, if they are in memory of a GPU.
    ///
    /// # Panics
    /// If they are not as many, or elsewhere.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        match &mut self.data {
            TensorData::Host(floats) => vector::add(floats, other.data()),
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                compute.add(buffer.view_mut(..), other.view(), 1.0, 1.0)?;
            }
        }
        Ok(())
    }

    /// Reduces over all `ranks`, in place. Here and below, what lies in memory of a GPU is exchanged there, behind what works on it.
    ///
    /// # Errors
    /// Of the collective; of ranks that have not met on GPUs, if it is in memory of one.
    pub fn all_reduce(&mut self, ranks: &ProcessGroup, reduction: ReduceOp) -> Result<()> {
        match &mut self.data {
            TensorData::Host(floats) => ranks.host().all_reduce(floats, reduction)?,
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                ranks.device()?.all_reduce(compute.stream(), buffer, reduction)?;
            }
        }
        Ok(())
    }

    /// Puts the parts of all ranks one after the other.
    ///
    /// # Errors
    /// Those of [`Tensor::all_reduce`].
    pub fn all_gather(&mut self, part: &Self, ranks: &ProcessGroup) -> Result<()> {
        match &mut self.data {
            TensorData::Host(all) => ranks.host().all_gather(part.data(), all)?,
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                ranks.device()?.all_gather(compute.stream(), &part.view(), buffer)?;
            }
        }
        Ok(())
    }

    /// Takes this rank's share of the sum of what all ranks have in `whole`.
    ///
    /// # Errors
    /// Those of [`Tensor::all_reduce`].
    pub fn reduce_scatter(&mut self, whole: &Self, ranks: &ProcessGroup) -> Result<()> {
        match &mut self.data {
            TensorData::Host(share) => ranks.host().reduce_scatter(whole.data(), share, Sum)?,
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                ranks.device()?.reduce_scatter(compute.stream(), &whole.view(), buffer, Sum)?;
            }
        }
        Ok(())
    }

    /// A copy of some rows.
    pub fn slice_rows(&self, memory: &Allocator, rows: Range<usize>) -> Self {
        let of = rows.start * self.columns..rows.end * self.columns;
        Self::from_slice(memory, rows.len(), self.columns, &self.data()[of])
    }

    /// Puts other numbers in some rows.
    pub fn write_rows(&mut self, rows: Range<usize>, part: &Self) {
        let of = rows.start * self.columns..rows.end * self.columns;
        self.data_mut()[of].copy_from_slice(part.data());
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
    ///
    /// # Panics
    /// If they are in memory of a GPU.
    pub fn data(&self) -> &[f32] {
        match &self.data {
            TensorData::Host(floats) => floats,
            TensorData::Device(numbers) => panic!("{numbers:?}, not here"),
        }
    }

    /// All numbers, to change.
    ///
    /// # Panics
    /// If they are in memory of a GPU.
    pub fn data_mut(&mut self) -> &mut [f32] {
        match &mut self.data {
            TensorData::Host(floats) => floats,
            TensorData::Device(numbers) => panic!("{numbers:?}, not here"),
        }
    }

    /// All numbers in memory of a GPU.
    ///
    /// # Panics
    /// If they are in the host's.
    pub fn view(&self) -> View<'_, f32> {
        match &self.data {
            TensorData::Device(numbers) => numbers.buffer.view(..),
            TensorData::Host(floats) => panic!("{floats:?}, not on a GPU"),
        }
    }

    /// All numbers in memory of a GPU, to change.
    ///
    /// # Panics
    /// If they are in the host's.
    pub fn view_mut(&mut self) -> ViewMut<'_, f32> {
        match &mut self.data {
            TensorData::Device(numbers) => numbers.buffer.view_mut(..),
            TensorData::Host(floats) => panic!("{floats:?}, not on a GPU"),
        }
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data()[row * self.columns..][..self.columns]
    }

    /// One row, to change.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let columns = self.columns;
        &mut self.data_mut()[row * columns..][..columns]
    }

    /// The same numbers in other rows.
    ///
    /// # Panics
    /// If their number would change.
    pub fn reshape(self, rows: usize, columns: usize) -> Self {
        assert_eq!(rows * columns, self.rows * self.columns, "a reshape keeps every number");
        Self { data: self.data, rows, columns }
    }
}
