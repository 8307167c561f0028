//! Matrices of activations.

mod device_vec;

pub(crate) use device_vec::DeviceVec;

use crate::allocator::{AllocClass, Allocator, F32Vec};
use crate::error::Result;
use crate::ops::host::vector;
use crate::ops::{Mat, Operand, Placed, Values, ValuesMut};
use crate::process_group::ProcessGroup;
use std::ops::Range;
use unisono::{RecvBuffer, ReduceOp, SendBuffer, Sum};
use unisono_cuda::device::{View, ViewMut};
use unisono_reducers::{as_bytes, as_bytes_mut};

/// Dense row-major matrix of 32-bit activations: `rows` (tokens, samples) by `columns` (features).
///
/// Modules that need more structure, such as sequences, heads or images, track it themselves. In a
/// pass on a GPU the elements are in GPU memory. Modules access them by [`Tensor::view`] there, and
/// by [`Tensor::data`] on the host.
#[derive(Debug)]
pub struct Tensor {
    data: TensorData,
    rows: usize,
    columns: usize,
}

type TensorData = Placed<F32Vec, DeviceVec>;

/// A tensor in host memory is a message between pipeline stages.
impl SendBuffer for Tensor {
    fn message(&self) -> &[u8] {
        as_bytes(self.data())
    }
}

impl RecvBuffer for Tensor {
    fn message_mut(&mut self) -> &mut [u8] {
        as_bytes_mut(self.data_mut())
    }
}

impl Tensor {
    /// Allocates a tensor with unspecified values in host memory. [`Pass::tensor_in_place`] is for
    /// tensors that modules compute.
    ///
    /// [`Pass::tensor_in_place`]: crate::pass::Pass::tensor_in_place
    pub fn new(memory: &Allocator, rows: usize, columns: usize) -> Self {
        Self { data: TensorData::Host(memory.alloc(AllocClass::Activations, rows * columns)), rows, columns }
    }

    /// Allocates a tensor of zeros in host memory.
    pub fn zeros(memory: &Allocator, rows: usize, columns: usize) -> Self {
        Self { data: TensorData::Host(memory.zeros(AllocClass::Activations, rows * columns)), rows, columns }
    }

    /// Wraps elements in GPU memory.
    pub(crate) fn on_device(numbers: DeviceVec, rows: usize, columns: usize) -> Self {
        Self { data: TensorData::Device(numbers), rows, columns }
    }

    /// Copies the elements of `data`, which are in row-major order, to host memory.
    ///
    /// # Panics
    /// Panics if their number is not `rows * columns`.
    pub fn from_slice(memory: &Allocator, rows: usize, columns: usize, data: &[f32]) -> Self {
        let mut tensor = Self::new(memory, rows, columns);
        tensor.data_mut().copy_from_slice(data);
        tensor
    }

    /// Copies the tensor.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn copy(&self) -> Result<Self> {
        let data = match &self.data {
            TensorData::Host(floats) => TensorData::Host(floats.copy()),
            TensorData::Device(numbers) => TensorData::Device(numbers.copy()?),
        };
        Ok(Self { data, rows: self.rows, columns: self.columns })
    }

    /// Moves the tensor to host memory, if it is not there.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn into_host(self, memory: &Allocator) -> Result<Self> {
        match &self.data {
            TensorData::Host(_) => Ok(self),
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                let numbers = buffer.to_vec(compute.stream())?;
                Ok(Self::from_slice(memory, self.rows, self.columns, &numbers))
            }
        }
    }

    /// Adds `other` element by element.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    ///
    /// # Panics
    /// Panics if sizes or memories differ.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        match &mut self.data {
            TensorData::Host(floats) => vector::add(floats, other.data()),
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                compute.add(buffer.view_mut(..), other.view(), 1.0, 1.0)?;
            }
        }
        Ok(())
    }

    /// Reduces over all `ranks`, in place. Tensors in GPU memory are exchanged there, behind the
    /// work on them, in this and the following functions.
    ///
    /// # Errors
    /// Returns the error of a failed collective. Fails for GPU memory if `ranks` has no GPU
    /// communicator.
    pub fn all_reduce(&mut self, ranks: &ProcessGroup, reduction: ReduceOp) -> Result<()> {
        match &mut self.data {
            TensorData::Host(floats) => ranks.host().all_reduce(floats, reduction)?,
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                ranks.device()?.all_reduce(compute.stream(), buffer, reduction)?;
            }
        }
        Ok(())
    }

    /// Gathers the parts of all ranks in rank order. Each rank has as many elements in `part`, and
    /// `self` has as many as all parts together.
    ///
    /// # Errors
    /// Fails as [`Tensor::all_reduce`] does.
    pub fn all_gather(&mut self, part: &Self, ranks: &ProcessGroup) -> Result<()> {
        match &mut self.data {
            TensorData::Host(gathered) => ranks.host().all_gather(part.data(), gathered)?,
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                ranks.device()?.all_gather(compute.stream(), &part.view(), buffer)?;
            }
        }
        Ok(())
    }

    /// Receives this rank's shard of the sum of `summand` over all ranks. Shards are equal, so
    /// `summand` has as many elements as the tensors of all ranks together.
    ///
    /// # Errors
    /// Fails as [`Tensor::all_reduce`] does.
    pub fn reduce_scatter(&mut self, summand: &Self, ranks: &ProcessGroup) -> Result<()> {
        match &mut self.data {
            TensorData::Host(share) => ranks.host().reduce_scatter(summand.data(), share, Sum)?,
            TensorData::Device(DeviceVec { buffer, compute, .. }) => {
                ranks.device()?.reduce_scatter(compute.stream(), &summand.view(), buffer, Sum)?;
            }
        }
        Ok(())
    }

    /// Copies some rows to a new tensor.
    ///
    /// # Panics
    /// Panics if there are no such rows, or if they are in GPU memory.
    pub fn slice_rows(&self, memory: &Allocator, rows: Range<usize>) -> Self {
        let range = rows.start * self.columns..rows.end * self.columns;
        Self::from_slice(memory, rows.len(), self.columns, &self.data()[range])
    }

    /// Overwrites some rows by those of `part`.
    ///
    /// # Panics
    /// Panics if sizes differ, if there are no such rows, or for GPU memory.
    pub fn write_rows(&mut self, rows: Range<usize>, part: &Self) {
        let range = rows.start * self.columns..rows.end * self.columns;
        self.data_mut()[range].copy_from_slice(part.data());
    }

    /// Returns the number of rows: tokens or samples.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns: features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns all elements in row-major order.
    ///
    /// # Panics
    /// Panics if they are in GPU memory.
    pub fn data(&self) -> &[f32] {
        self.values().host()
    }

    /// Returns all elements for changes.
    ///
    /// # Panics
    /// Panics if they are in GPU memory.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.values_mut().host()
    }

    /// Returns all elements in GPU memory.
    ///
    /// # Panics
    /// Panics if they are in host memory.
    pub fn view(&self) -> View<'_, f32> {
        self.values().device()
    }

    /// Returns all elements in GPU memory for changes.
    ///
    /// # Panics
    /// Panics if they are in host memory.
    pub fn view_mut(&mut self) -> ViewMut<'_, f32> {
        self.values_mut().device()
    }

    /// Returns all elements, for operations.
    pub fn values(&self) -> Values<'_> {
        match &self.data {
            TensorData::Host(floats) => Values::Host(floats),
            TensorData::Device(numbers) => Values::Device(numbers.buffer.view(..)),
        }
    }

    /// Returns all elements for changes, for operations.
    pub fn values_mut(&mut self) -> ValuesMut<'_> {
        match &mut self.data {
            TensorData::Host(floats) => ValuesMut::Host(floats),
            TensorData::Device(numbers) => ValuesMut::Device(numbers.buffer.view_mut(..)),
        }
    }

    /// Returns the matrix, for products.
    pub fn matrix(&self) -> Mat<Values<'_>> {
        Mat::new(self.values(), self.rows, self.columns)
    }

    /// Returns the matrix for changes, for products.
    pub fn matrix_mut(&mut self) -> Mat<ValuesMut<'_>> {
        let (rows, columns) = (self.rows, self.columns);
        Mat::new(self.values_mut(), rows, columns)
    }

    /// Returns a row.
    ///
    /// # Panics
    /// Panics if there is no such row, or if it is in GPU memory.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data()[row * self.columns..][..self.columns]
    }

    /// Returns a row for changes.
    ///
    /// # Panics
    /// Panics as [`Tensor::row`] does.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let columns = self.columns;
        &mut self.data_mut()[row * columns..][..columns]
    }

    /// Changes the shape.
    ///
    /// # Panics
    /// Panics if the number of elements would change.
    pub fn reshape(self, rows: usize, columns: usize) -> Self {
        assert_eq!(rows * columns, self.rows * self.columns, "a reshape keeps every number");
        Self { data: self.data, rows, columns }
    }
}
