//! Typed flat buffers in host or GPU memory, and collectives on them.

use crate::bucket::DeviceBuffer;
use std::ops::{Deref, Range};
use unisono::{Element, ReduceKind, ReduceOp, Result, Sum, bf16};
use unisono_nn::allocator::{AllocClass, Allocator, F32Vec, TrackedVec};
use unisono_nn::parameter::Dtype;
use unisono_nn::process_group::Comm;
use unisono_reducers::{PostOp, as_bytes, as_bytes_mut, average, narrow, reduce_assign, widen};

/// Buffer of one element type, counted by the allocator.
#[derive(Debug)]
pub enum FlatBuffer {
    /// 32-bit floats in host memory.
    F32(TrackedVec<f32>),
    /// bfloat16 in host memory.
    Bf16(TrackedVec<bf16>),
    /// Either type in GPU memory.
    Device(DeviceBuffer),
}

/// View of elements as 32-bit floats.
pub enum FloatView<'a> {
    /// The buffer holds 32-bit floats.
    Borrowed(&'a [f32]),
    /// The elements were widened into a copy.
    Widened(F32Vec),
}

impl Deref for FloatView<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            FloatView::Borrowed(slice) => slice,
            FloatView::Widened(wide) => wide,
        }
    }
}

/// Runs a collective on `$numbers`: `$body` on the host, `$on_device` on a GPU.
macro_rules! collective {
    ($numbers:expr, $peers:expr, $slice:ident, $group:ident => $body:expr, $on_device:expr) => {
        match ($numbers, $peers) {
            (FlatBuffer::F32($slice), Comm::Host($group)) => $body,
            (FlatBuffer::Bf16($slice), Comm::Host($group)) => $body,
            (FlatBuffer::Device($slice), Comm::Device($group)) => $on_device,
            _ => unreachable!("a group reaches where its numbers lie"),
        }
    };
}

impl FlatBuffer {
    /// Allocates `count` elements with unspecified values in the memory that `memory` uses for flat
    /// buffers.
    ///
    /// # Errors
    /// Fails if GPU memory is exhausted.
    pub fn new(memory: &Allocator, class: AllocClass, dtype: Dtype, count: usize) -> Result<Self> {
        Ok(match (memory.lane(), dtype) {
            (Some(lane), _) => FlatBuffer::Device(DeviceBuffer::zeros(memory, lane, class, dtype, count)?),
            (None, Dtype::F32) => FlatBuffer::F32(memory.alloc(class, count)),
            (None, Dtype::Bf16) => FlatBuffer::Bf16(memory.alloc(class, count)),
        })
    }

    /// Allocates `count` zeros.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::new`] does.
    pub fn zeros(memory: &Allocator, class: AllocClass, dtype: Dtype, count: usize) -> Result<Self> {
        let mut numbers = Self::new(memory, class, dtype, count)?;
        // GPU memory is allocated as zeros, in the order of its stream.
        if memory.lane().is_none() {
            numbers.zero()?;
        }
        Ok(numbers)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            FlatBuffer::F32(slice) => slice.len(),
            FlatBuffer::Bf16(slice) => slice.len(),
            FlatBuffer::Device(there) => there.len(),
        }
    }

    /// Returns true if the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            FlatBuffer::F32(_) => Dtype::F32,
            FlatBuffer::Bf16(_) => Dtype::Bf16,
            FlatBuffer::Device(there) => there.dtype(),
        }
    }

    /// Sets all elements to zero.
    ///
    /// # Errors
    /// Returns an error of the GPU driver. This applies to all functions of this type.
    pub fn zero(&mut self) -> Result<()> {
        match self {
            FlatBuffer::F32(slice) => slice.fill(0.0),
            FlatBuffer::Bf16(slice) => slice.fill(bf16::ZERO),
            FlatBuffer::Device(there) => there.zero()?,
        }
        Ok(())
    }

    /// Returns the elements if they are 32-bit floats in host memory.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            FlatBuffer::F32(slice) => Some(slice),
            FlatBuffer::Bf16(_) | FlatBuffer::Device(_) => None,
        }
    }

    /// Returns the elements for changes, if they are 32-bit floats in host memory.
    pub fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            FlatBuffer::F32(slice) => Some(slice),
            FlatBuffer::Bf16(_) | FlatBuffer::Device(_) => None,
        }
    }

    /// Returns the GPU buffer, if the elements are in GPU memory.
    pub fn as_device(&self) -> Option<&DeviceBuffer> {
        match self {
            FlatBuffer::Device(there) => Some(there),
            FlatBuffer::F32(_) | FlatBuffer::Bf16(_) => None,
        }
    }

    /// Returns the GPU buffer for changes, if the elements are in GPU memory.
    pub fn as_device_mut(&mut self) -> Option<&mut DeviceBuffer> {
        match self {
            FlatBuffer::Device(there) => Some(there),
            FlatBuffer::F32(_) | FlatBuffer::Bf16(_) => None,
        }
    }

    /// Returns `range` as 32-bit floats in host memory: borrowed, widened, or copied.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn view(&self, memory: &Allocator, range: Range<usize>) -> Result<FloatView<'_>> {
        if let FlatBuffer::F32(slice) = self {
            return Ok(FloatView::Borrowed(&slice[range]));
        }
        let mut wide = memory.alloc(AllocClass::Buffers, range.len());
        self.widen(range, &mut wide)?;
        Ok(FloatView::Widened(wide))
    }

    /// Calls the closure with `range` as mutable 32-bit floats in host memory, and stores the
    /// result.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn with_f32_mut<R>(
        &mut self,
        memory: &Allocator,
        range: Range<usize>,
        body: impl FnOnce(&mut [f32]) -> R,
    ) -> Result<R> {
        if let FlatBuffer::F32(slice) = self {
            return Ok(body(&mut slice[range]));
        }
        let mut wide = memory.alloc(AllocClass::Buffers, range.len());
        self.widen(range.clone(), &mut wide)?;
        let result = body(&mut wide);
        self.narrow(range, &wide)?;
        Ok(result)
    }

    /// Copies `range` to `values` as 32-bit floats.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn widen(&self, range: Range<usize>, values: &mut [f32]) -> Result<()> {
        match self {
            FlatBuffer::F32(slice) => values.copy_from_slice(&slice[range]),
            FlatBuffer::Bf16(slice) => widen(values, &slice[range]),
            FlatBuffer::Device(there) => there.read(range, values)?,
        }
        Ok(())
    }

    /// Copies `values` to `range`, rounded to nearest, ties to even.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn narrow(&mut self, range: Range<usize>, values: &[f32]) -> Result<()> {
        match self {
            FlatBuffer::F32(slice) => slice[range].copy_from_slice(values),
            FlatBuffer::Bf16(slice) => narrow(&mut slice[range], values),
            FlatBuffer::Device(there) => there.write(range, values)?,
        }
        Ok(())
    }

    /// Copies `source_range` of `source` to `range`, converted to this type. Both buffers must be
    /// in the same memory.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn copy_range(
        &mut self,
        range: Range<usize>,
        source: &Self,
        source_range: Range<usize>,
    ) -> Result<()> {
        match (self, source) {
            (FlatBuffer::Device(there), FlatBuffer::Device(source)) => {
                there.copy_range(range, source, source_range)
            }
            (FlatBuffer::F32(target), source) => source.widen(source_range, &mut target[range]),
            (target, FlatBuffer::F32(source)) => target.narrow(range, &source[source_range]),
            (FlatBuffer::Bf16(target), FlatBuffer::Bf16(source)) => {
                target[range].copy_from_slice(&source[source_range]);
                Ok(())
            }
            _ => unreachable!("flat memory of one rank lies at one place"),
        }
    }

    /// Copies all elements of `other`, which must have the same type and length.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn copy_from(&mut self, other: &Self) -> Result<()> {
        self.copy_range(0..self.len(), other, 0..other.len())
    }

    /// Adds `other` element by element.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (FlatBuffer::F32(sum), FlatBuffer::F32(other)) => add(sum, other),
            (FlatBuffer::Bf16(sum), FlatBuffer::Bf16(other)) => add(sum, other),
            (FlatBuffer::Device(sum), FlatBuffer::Device(other)) => sum.add(other)?,
            _ => unreachable!("buckets and their shares have one type and place"),
        }
        Ok(())
    }

    /// Divides all elements by `ranks`.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn divide(&mut self, ranks: u32) -> Result<()> {
        match self {
            FlatBuffer::F32(slice) => average(slice, ranks),
            FlatBuffer::Bf16(slice) => average(slice, ranks),
            FlatBuffer::Device(there) => there.scale(1.0 / ranks as f32)?,
        }
        Ok(())
    }

    /// Copies the buffer to another element type and allocation class.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::zero`] does.
    pub fn to_dtype(&self, memory: &Allocator, class: AllocClass, dtype: Dtype) -> Result<Self> {
        if let FlatBuffer::Device(there) = self {
            return there.to_dtype(class, dtype).map(FlatBuffer::Device);
        }
        let mut copy = Self::new(memory, class, dtype, self.len())?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// Allocates `count` elements of the same type with unspecified values, in the same memory and
    /// on the same stream.
    ///
    /// # Errors
    /// Fails as [`FlatBuffer::new`] does.
    pub fn new_like(&self, memory: &Allocator, class: AllocClass, count: usize) -> Result<Self> {
        match self {
            FlatBuffer::Device(there) => there.new_like(class, count).map(FlatBuffer::Device),
            _ => Self::new(memory, class, self.dtype(), count),
        }
    }

    /// Reduces the buffer over all ranks, in place.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn all_reduce(&mut self, peers: Comm<'_>, reduction: ReduceOp) -> Result<()> {
        collective!(self, peers, slice, group => group.all_reduce(slice, reduction), slice.all_reduce(group, reduction))
    }

    /// Sums the elements of `range` over all ranks, in place.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn all_reduce_range(&mut self, range: Range<usize>, peers: Comm<'_>) -> Result<()> {
        collective!(self, peers, slice, group => group.all_reduce(&mut slice[range], Sum), slice.all_reduce_range(range, group))
    }

    /// Reduces over all ranks and writes this rank's shard to `share`.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn reduce_scatter(&self, share: &mut Self, peers: Comm<'_>, reduction: ReduceOp) -> Result<()> {
        match (self, share, peers) {
            (FlatBuffer::F32(buffer), FlatBuffer::F32(share), Comm::Host(group)) => {
                group.reduce_scatter(buffer, share, reduction)
            }
            (FlatBuffer::Bf16(buffer), FlatBuffer::Bf16(share), Comm::Host(group)) => {
                group.reduce_scatter(buffer, share, reduction)
            }
            (FlatBuffer::Device(buffer), FlatBuffer::Device(share), Comm::Device(group)) => {
                buffer.reduce_scatter(share, group, reduction)
            }
            _ => unreachable!("a group reaches where its numbers lie"),
        }
    }

    /// Reduces as [`FlatBuffer::reduce_scatter`] does, with the shard in place.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn reduce_scatter_in_place(&mut self, peers: Comm<'_>, reduction: ReduceOp) -> Result<()> {
        collective!(self, peers, slice, group => group.reduce_scatter_in_place(slice, reduction), slice.reduce_scatter_in_place(group, reduction))
    }

    /// Gathers the shards of all ranks in rank order.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn all_gather(&mut self, share: &Self, peers: Comm<'_>) -> Result<()> {
        match (self, share, peers) {
            (FlatBuffer::F32(buffer), FlatBuffer::F32(share), Comm::Host(group)) => {
                group.all_gather(share, buffer)
            }
            (FlatBuffer::Bf16(buffer), FlatBuffer::Bf16(share), Comm::Host(group)) => {
                group.all_gather(share, buffer)
            }
            (FlatBuffer::Device(buffer), FlatBuffer::Device(share), Comm::Device(group)) => {
                buffer.all_gather(share, group)
            }
            _ => unreachable!("a group reaches where its numbers lie"),
        }
    }

    /// Gathers as [`FlatBuffer::all_gather`] does, with this rank's shard in place.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn all_gather_in_place(&mut self, peers: Comm<'_>) -> Result<()> {
        collective!(self, peers, slice, group => group.all_gather_in_place(slice), slice.all_gather_in_place(group))
    }

    /// Copies the elements of rank `root` to all ranks.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn broadcast(&mut self, peers: Comm<'_>, root: usize) -> Result<()> {
        collective!(self, peers, slice, group => group.broadcast(slice, root), slice.broadcast(group, root))
    }
}

fn add<T: Element>(sum: &mut [T], other: &[T]) {
    reduce_assign(
        T::DTYPE,
        ReduceKind::Sum,
        PostOp::Identity,
        as_bytes_mut(sum).into(),
        &[as_bytes(other).into()],
    );
}
