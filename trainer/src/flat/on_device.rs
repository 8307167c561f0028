//! Flat memory of a GPU: numbers, and the work on them that is enqueued.

use crate::flat::Dtype;
use crate::memory::{Class, Memory, Noted};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use unisono::device::{Buffer, DeviceCommunicator, Event, View, ViewMut};
use unisono::{Reduction, Result, Sum, bf16};
use unisono_cuda::device::compute::Compute;
use unisono_cuda::{narrow, widen};

/// Numbers of one type in memory of a GPU. What is done with them is enqueued in the stream of their lane.
pub struct OnDevice {
    data: Data,
    lane: Arc<Compute>,
    memory: Memory,
    _counted: Noted,
}

enum Data {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
}

/// Runs `$body` with `$numbers` as the buffer that they are.
macro_rules! typed {
    ($numbers:expr, $buffer:ident => $body:expr) => {
        match $numbers {
            Data::F32($buffer) => $body,
            Data::Bf16($buffer) => $body,
        }
    };
}

/// As `typed!`, with two of the same type.
macro_rules! both {
    ($one:expr, $other:expr, $a:ident, $b:ident => $body:expr) => {
        match ($one, $other) {
            (Data::F32($a), Data::F32($b)) => $body,
            (Data::Bf16($a), Data::Bf16($b)) => $body,
            _ => unreachable!("buckets and their shares have one type"),
        }
    };
}

impl OnDevice {
    /// `count` zeros, in the lane of `memory`'s GPU that is given.
    pub(super) fn zeros(
        memory: &Memory,
        lane: &Arc<Compute>,
        class: Class,
        dtype: Dtype,
        count: usize,
    ) -> Result<Self> {
        let stream = lane.stream();
        let data = match dtype {
            Dtype::F32 => Data::F32(stream.alloc(count)?),
            Dtype::Bf16 => Data::Bf16(stream.alloc(count)?),
        };
        let counted = memory.note(class, count * dtype.size());
        Ok(Self { data, lane: Arc::clone(lane), memory: memory.clone(), _counted: counted })
    }

    pub(super) fn len(&self) -> usize {
        typed!(&self.data, buffer => buffer.len())
    }

    pub(super) fn dtype(&self) -> Dtype {
        match &self.data {
            Data::F32(_) => Dtype::F32,
            Data::Bf16(_) => Dtype::Bf16,
        }
    }

    /// What works on them now.
    pub(crate) fn lane(&self) -> &Arc<Compute> {
        &self.lane
    }

    /// Lets `lane` work on them from now on, behind what they wait for.
    pub(crate) fn hand_over(&mut self, lane: &Arc<Compute>, behind: &Event) -> Result<()> {
        lane.stream().wait(behind)?;
        self.lane = Arc::clone(lane);
        Ok(())
    }

    /// 32-bit floats in `range`.
    pub(crate) fn view(&self, range: Range<usize>) -> Option<View<'_, f32>> {
        match &self.data {
            Data::F32(buffer) => Some(buffer.view(range)),
            Data::Bf16(_) => None,
        }
    }

    /// 32-bit floats in `range`, to change.
    pub(crate) fn view_mut(&mut self, range: Range<usize>) -> Option<ViewMut<'_, f32>> {
        match &mut self.data {
            Data::F32(buffer) => Some(buffer.view_mut(range)),
            Data::Bf16(_) => None,
        }
    }

    pub(super) fn clear(&mut self) -> Result<()> {
        typed!(&mut self.data, buffer => Ok(self.lane.clear(buffer.view_mut(..))?))
    }

    /// Copies the numbers in `range` to the host, as 32-bit floats; waits for them.
    pub(super) fn read(&self, range: Range<usize>, into: &mut [f32]) -> Result<()> {
        match &self.data {
            Data::F32(buffer) => buffer.view(range).read(self.lane.stream(), into)?,
            Data::Bf16(buffer) => widen(into, &buffer.view(range).to_vec(self.lane.stream())?),
        }
        Ok(())
    }

    /// Copies numbers of the host to `range`, rounded to the nearest, ties to even; waits for the copy.
    pub(super) fn write(&mut self, range: Range<usize>, from: &[f32]) -> Result<()> {
        match &mut self.data {
            Data::F32(buffer) => buffer.view_mut(range).write(self.lane.stream(), from)?,
            Data::Bf16(buffer) => {
                let mut halves = vec![bf16::ZERO; from.len()];
                narrow(&mut halves, from);
                buffer.view_mut(range).write(self.lane.stream(), &halves)?;
            }
        }
        Ok(())
    }

    /// Puts the numbers `of` of `from` where `range` says, in this type.
    pub(super) fn put(&mut self, range: Range<usize>, from: &Self, of: Range<usize>) -> Result<()> {
        let lane = &self.lane;
        match (&mut self.data, &from.data) {
            (Data::F32(into), Data::F32(from)) => lane.copy(into.view_mut(range), from.view(of))?,
            (Data::Bf16(into), Data::Bf16(from)) => lane.copy(into.view_mut(range), from.view(of))?,
            (Data::F32(into), Data::Bf16(from)) => lane.widen(into.view_mut(range), from.view(of))?,
            (Data::Bf16(into), Data::F32(from)) => lane.narrow(into.view_mut(range), from.view(of))?,
        }
        Ok(())
    }

    /// `count` zeros of this type in the same lane.
    pub(super) fn alike(&self, class: Class, count: usize) -> Result<Self> {
        Self::zeros(&self.memory, &self.lane, class, self.dtype(), count)
    }

    /// A copy of another type, or the same.
    pub(super) fn converted(&self, class: Class, dtype: Dtype) -> Result<Self> {
        let mut copy = Self::zeros(&self.memory, &self.lane, class, dtype, self.len())?;
        let whole = 0..self.len();
        copy.put(whole.clone(), self, whole)?;
        Ok(copy)
    }

    /// The sum of the squares of the numbers in all `ranges`, which stays there.
    pub(crate) fn squares(&self, ranges: &[Range<usize>]) -> Result<Buffer<f64>> {
        match &self.data {
            Data::F32(buffer) => {
                let parts: Vec<_> = ranges.iter().map(|range| buffer.view(range.clone())).collect();
                Ok(self.lane.squares(&parts)?)
            }
            Data::Bf16(_) => self.converted(Class::Buffers, Dtype::F32)?.squares(ranges),
        }
    }

    /// Adds `other`, number by number, in 32 bits.
    pub(super) fn add(&mut self, other: &Self) -> Result<()> {
        match (&mut self.data, &other.data) {
            (Data::F32(sum), Data::F32(other)) => {
                Ok(self.lane.add(sum.view_mut(..), other.view(..), 1.0, 1.0)?)
            }
            _ => {
                let other = other.converted(Class::Buffers, Dtype::F32)?;
                self.widened(|sum| sum.add(&other))
            }
        }
    }

    /// Multiplies all by `factor`, in 32 bits.
    pub(super) fn scale(&mut self, factor: f32) -> Result<()> {
        match &mut self.data {
            Data::F32(buffer) => Ok(self.lane.scale(buffer.view_mut(..), factor)?),
            Data::Bf16(_) => self.widened(|wide| wide.scale(factor)),
        }
    }

    /// Lets `change` work on these numbers in 32 bits.
    fn widened(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (mut wide, whole) = (self.converted(Class::Buffers, Dtype::F32)?, 0..self.len());
        change(&mut wide)?;
        self.put(whole.clone(), &wide, whole)
    }

    pub(super) fn all_reduce(&mut self, group: &DeviceCommunicator, reduction: Reduction) -> Result<()> {
        typed!(&mut self.data, buffer => group.all_reduce(self.lane.stream(), buffer, reduction))
    }

    pub(super) fn sum_range(&mut self, range: Range<usize>, group: &DeviceCommunicator) -> Result<()> {
        typed!(&mut self.data, buffer => group.all_reduce(self.lane.stream(), &mut buffer.view_mut(range), Sum))
    }

    pub(super) fn reduce_scatter(
        &self,
        share: &mut Self,
        group: &DeviceCommunicator,
        reduction: Reduction,
    ) -> Result<()> {
        let stream = self.lane.stream();
        both!(&self.data, &mut share.data, all, share => group.reduce_scatter(stream, all, share, reduction))
    }

    pub(super) fn reduce_scatter_in_place(
        &mut self,
        group: &DeviceCommunicator,
        reduction: Reduction,
    ) -> Result<()> {
        let stream = self.lane.stream();
        typed!(&mut self.data, buffer => group.reduce_scatter_in_place(stream, buffer, reduction))
    }

    pub(super) fn all_gather(&mut self, share: &Self, group: &DeviceCommunicator) -> Result<()> {
        let stream = self.lane.stream();
        both!(&mut self.data, &share.data, all, share => group.all_gather(stream, share, all))
    }

    pub(super) fn all_gather_in_place(&mut self, group: &DeviceCommunicator) -> Result<()> {
        typed!(&mut self.data, buffer => group.all_gather_in_place(self.lane.stream(), buffer))
    }

    pub(super) fn broadcast(&mut self, group: &DeviceCommunicator, root: usize) -> Result<()> {
        typed!(&mut self.data, buffer => group.broadcast(self.lane.stream(), buffer, root))
    }
}

impl fmt::Debug for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers on {}", self.len(), self.lane.stream().gpu().name())
    }
}
