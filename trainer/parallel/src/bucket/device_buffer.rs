//! Flat buffers in GPU memory, and the operations enqueued on them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use unisono::device::{Buffer, DeviceCommunicator, Event, View, ViewMut};
use unisono::{ReduceOp, Result, Sum, bf16};
use unisono_cuda::device::compute::Compute;
use unisono_nn::allocator::{AllocClass, Allocator, Tracked};
use unisono_nn::parameter::Dtype;
use unisono_reducers::{narrow, widen};

/// Buffer of one element type in GPU memory. Operations are enqueued in the stream of its lane.
pub struct DeviceBuffer {
    data: DeviceData,
    lane: Arc<Compute>,
    memory: Allocator,
    _tracked: Tracked,
}

enum DeviceData {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
}

/// Runs `$body` with `$numbers` as the typed buffer.
macro_rules! dispatch {
    ($numbers:expr, $buffer:ident => $body:expr) => {
        match $numbers {
            DeviceData::F32($buffer) => $body,
            DeviceData::Bf16($buffer) => $body,
        }
    };
}

/// Runs a body as `dispatch!` does, with two buffers of the same type.
macro_rules! dispatch_pair {
    ($one:expr, $other:expr, $a:ident, $b:ident => $body:expr) => {
        match ($one, $other) {
            (DeviceData::F32($a), DeviceData::F32($b)) => $body,
            (DeviceData::Bf16($a), DeviceData::Bf16($b)) => $body,
            _ => unreachable!("buckets and their shares have one type"),
        }
    };
}

impl DeviceBuffer {
    /// Allocates `count` zeros, in this lane of `memory`'s GPU.
    pub(super) fn zeros(
        memory: &Allocator,
        lane: &Arc<Compute>,
        class: AllocClass,
        dtype: Dtype,
        count: usize,
    ) -> Result<Self> {
        let stream = lane.stream();
        let data = match dtype {
            Dtype::F32 => DeviceData::F32(stream.alloc(count)?),
            Dtype::Bf16 => DeviceData::Bf16(stream.alloc(count)?),
        };
        let counted = memory.track(class, count * dtype.size());
        Ok(Self { data, lane: Arc::clone(lane), memory: memory.clone(), _tracked: counted })
    }

    pub(super) fn len(&self) -> usize {
        dispatch!(&self.data, buffer => buffer.len())
    }

    pub(super) fn dtype(&self) -> Dtype {
        match &self.data {
            DeviceData::F32(_) => Dtype::F32,
            DeviceData::Bf16(_) => Dtype::Bf16,
        }
    }

    /// Returns the lane that works on the buffer.
    pub(crate) fn lane(&self) -> &Arc<Compute> {
        &self.lane
    }

    /// Moves the buffer to `lane`, whose work waits for `event`.
    pub(crate) fn move_to_lane(&mut self, lane: &Arc<Compute>, event: &Event) -> Result<()> {
        // The stream waits, and not the host, which can enqueue more work meanwhile.
        lane.stream().wait(event)?;
        self.lane = Arc::clone(lane);
        Ok(())
    }

    /// Returns the 32-bit floats in `range`.
    pub(crate) fn view(&self, range: Range<usize>) -> Option<View<'_, f32>> {
        match &self.data {
            DeviceData::F32(buffer) => Some(buffer.view(range)),
            DeviceData::Bf16(_) => None,
        }
    }

    /// Returns the 32-bit floats in `range` for changes.
    pub(crate) fn view_mut(&mut self, range: Range<usize>) -> Option<ViewMut<'_, f32>> {
        match &mut self.data {
            DeviceData::F32(buffer) => Some(buffer.view_mut(range)),
            DeviceData::Bf16(_) => None,
        }
    }

    pub(super) fn zero(&mut self) -> Result<()> {
        dispatch!(&mut self.data, buffer => Ok(self.lane.zero(buffer.view_mut(..))?))
    }

    /// Copies `range` to the host as 32-bit floats, and waits for the copy.
    pub(super) fn read(&self, range: Range<usize>, values: &mut [f32]) -> Result<()> {
        match &self.data {
            DeviceData::F32(buffer) => buffer.view(range).read(self.lane.stream(), values)?,
            DeviceData::Bf16(buffer) => widen(values, &buffer.view(range).to_vec(self.lane.stream())?),
        }
        Ok(())
    }

    /// Copies host elements to `range`, rounded to nearest, ties to even. Waits for the copy.
    pub(super) fn write(&mut self, range: Range<usize>, values: &[f32]) -> Result<()> {
        match &mut self.data {
            DeviceData::F32(buffer) => buffer.view_mut(range).write(self.lane.stream(), values)?,
            DeviceData::Bf16(buffer) => {
                let mut halves = vec![bf16::ZERO; values.len()];
                narrow(&mut halves, values);
                buffer.view_mut(range).write(self.lane.stream(), &halves)?;
            }
        }
        Ok(())
    }

    /// Copies `source_range` of `source` to `range`, converted to this type.
    pub(super) fn copy_range(
        &mut self,
        range: Range<usize>,
        source: &Self,
        source_range: Range<usize>,
    ) -> Result<()> {
        let lane = &self.lane;
        match (&mut self.data, &source.data) {
            (DeviceData::F32(target), DeviceData::F32(source)) => {
                lane.copy(target.view_mut(range), source.view(source_range))?
            }
            (DeviceData::Bf16(target), DeviceData::Bf16(source)) => {
                lane.copy(target.view_mut(range), source.view(source_range))?
            }
            (DeviceData::F32(target), DeviceData::Bf16(source)) => {
                lane.widen(target.view_mut(range), source.view(source_range))?
            }
            (DeviceData::Bf16(target), DeviceData::F32(source)) => {
                lane.narrow(target.view_mut(range), source.view(source_range))?
            }
        }
        Ok(())
    }

    /// Allocates `count` zeros of this type in the same lane.
    pub(super) fn new_like(&self, class: AllocClass, count: usize) -> Result<Self> {
        Self::zeros(&self.memory, &self.lane, class, self.dtype(), count)
    }

    /// Copies the buffer to this type.
    pub(super) fn to_dtype(&self, class: AllocClass, dtype: Dtype) -> Result<Self> {
        let mut copy = Self::zeros(&self.memory, &self.lane, class, dtype, self.len())?;
        let elements = 0..self.len();
        copy.copy_range(elements.clone(), self, elements)?;
        Ok(copy)
    }

    /// Enqueues the sum of squares over all `ranges`. The result stays on the GPU.
    pub(crate) fn square_sums(&self, ranges: &[Range<usize>]) -> Result<Buffer<f64>> {
        match &self.data {
            DeviceData::F32(buffer) => {
                let parts: Vec<_> = ranges.iter().map(|range| buffer.view(range.clone())).collect();
                Ok(self.lane.square_sums(&parts)?)
            }
            DeviceData::Bf16(_) => self.to_dtype(AllocClass::Buffers, Dtype::F32)?.square_sums(ranges),
        }
    }

    /// Adds `other` element by element, in 32 bits.
    pub(super) fn add(&mut self, other: &Self) -> Result<()> {
        match (&mut self.data, &other.data) {
            (DeviceData::F32(sum), DeviceData::F32(other)) => {
                Ok(self.lane.add(sum.view_mut(..), other.view(..), 1.0, 1.0)?)
            }
            _ => {
                let other = other.to_dtype(AllocClass::Buffers, Dtype::F32)?;
                self.with_f32(|sum| sum.add(&other))
            }
        }
    }

    /// Multiplies all elements by `factor`, in 32 bits.
    pub(super) fn scale(&mut self, factor: f32) -> Result<()> {
        match &mut self.data {
            DeviceData::F32(buffer) => Ok(self.lane.scale(buffer.view_mut(..), factor)?),
            DeviceData::Bf16(_) => self.with_f32(|wide| wide.scale(factor)),
        }
    }

    /// Runs `change` on a 32-bit version of the elements.
    fn with_f32(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (mut wide, elements) = (self.to_dtype(AllocClass::Buffers, Dtype::F32)?, 0..self.len());
        change(&mut wide)?;
        self.copy_range(elements.clone(), &wide, elements)
    }

    pub(super) fn all_reduce(&mut self, group: &DeviceCommunicator, reduction: ReduceOp) -> Result<()> {
        dispatch!(&mut self.data, buffer => group.all_reduce(self.lane.stream(), buffer, reduction))
    }

    pub(super) fn all_reduce_range(&mut self, range: Range<usize>, group: &DeviceCommunicator) -> Result<()> {
        dispatch!(&mut self.data, buffer => group.all_reduce(self.lane.stream(), &mut buffer.view_mut(range), Sum))
    }

    pub(super) fn reduce_scatter(
        &self,
        share: &mut Self,
        group: &DeviceCommunicator,
        reduction: ReduceOp,
    ) -> Result<()> {
        let stream = self.lane.stream();
        dispatch_pair!(&self.data, &mut share.data, buffer, share => group.reduce_scatter(stream, buffer, share, reduction))
    }

    pub(super) fn reduce_scatter_in_place(
        &mut self,
        group: &DeviceCommunicator,
        reduction: ReduceOp,
    ) -> Result<()> {
        let stream = self.lane.stream();
        dispatch!(&mut self.data, buffer => group.reduce_scatter_in_place(stream, buffer, reduction))
    }

    pub(super) fn all_gather(&mut self, share: &Self, group: &DeviceCommunicator) -> Result<()> {
        let stream = self.lane.stream();
        dispatch_pair!(&mut self.data, &share.data, buffer, share => group.all_gather(stream, share, buffer))
    }

    pub(super) fn all_gather_in_place(&mut self, group: &DeviceCommunicator) -> Result<()> {
        dispatch!(&mut self.data, buffer => group.all_gather_in_place(self.lane.stream(), buffer))
    }

    pub(super) fn broadcast(&mut self, group: &DeviceCommunicator, root: usize) -> Result<()> {
        dispatch!(&mut self.data, buffer => group.broadcast(self.lane.stream(), buffer, root))
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers on {}", self.len(), self.lane.stream().gpu().name())
    }
}
