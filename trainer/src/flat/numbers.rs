//! Typed flat memory: 32-bit or 16-bit numbers, wherever they lie, and the collectives on them.

use crate::flat::{OnDevice, Peers};
use crate::memory::{Class, Floats, Memory, Storage};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, Range};
use unisono::{Element, Op, Reduction, Result, Sum, bf16};
use unisono_cuda::{Finish, as_bytes, as_bytes_mut, average, narrow, reduce_assign, widen};

/// Type of numbers in flat memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats with the range of 32-bit ones.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
}

/// Numbers of one type, counted.
#[derive(Debug)]
pub enum Numbers {
    /// 32-bit floats.
    F32(Storage<f32>),
    /// 16-bit floats.
    Bf16(Storage<bf16>),
    /// Of either type, in memory of a GPU.
    Device(OnDevice),
}

/// Some numbers as 32-bit floats.
pub enum View<'a> {
    /// They are that.
    Same(&'a [f32]),
    /// They were widened.
    Wide(Floats),
}

impl Deref for View<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            View::Same(slice) => slice,
            View::Wide(wide) => wide,
        }
    }
}

/// Runs a collective on `$numbers`: `$body` on the host, `$on_device` on a GPU.
macro_rules! collective {
    ($numbers:expr, $peers:expr, $slice:ident, $group:ident => $body:expr, $on_device:expr) => {
        match ($numbers, $peers) {
            (Numbers::F32($slice), Peers::Host($group)) => $body,
            (Numbers::Bf16($slice), Peers::Host($group)) => $body,
            (Numbers::Device($slice), Peers::Device($group)) => $on_device,
            _ => unreachable!("a group reaches where its numbers lie"),
        }
    };
}

impl Numbers {
    /// `count` numbers that mean nothing yet, where `memory` keeps flat numbers.
    ///
    /// # Errors
    /// If a GPU has no room for them.
    pub fn new(memory: &Memory, class: Class, dtype: Dtype, count: usize) -> Result<Self> {
        Ok(match (memory.lane(), dtype) {
            (Some(lane), _) => Numbers::Device(OnDevice::zeros(memory, lane, class, dtype, count)?),
            (None, Dtype::F32) => Numbers::F32(memory.take(class, count)),
            (None, Dtype::Bf16) => Numbers::Bf16(memory.take(class, count)),
        })
    }

    /// `count` zeros.
    ///
    /// # Errors
    /// Those of [`Numbers::new`].
    pub fn zeros(memory: &Memory, class: Class, dtype: Dtype, count: usize) -> Result<Self> {
        let mut numbers = Self::new(memory, class, dtype, count)?;
        if memory.lane().is_none() {
            numbers.clear()?;
        }
        Ok(numbers)
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Numbers::F32(slice) => slice.len(),
            Numbers::Bf16(slice) => slice.len(),
            Numbers::Device(there) => there.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Numbers::F32(_) => Dtype::F32,
            Numbers::Bf16(_) => Dtype::Bf16,
            Numbers::Device(there) => there.dtype(),
        }
    }

    /// Sets all to zero.
    ///
    /// # Errors
    /// Of the driver of a GPU, here and below.
    pub fn clear(&mut self) -> Result<()> {
        match self {
            Numbers::F32(slice) => slice.fill(0.0),
            Numbers::Bf16(slice) => slice.fill(bf16::ZERO),
            Numbers::Device(there) => there.clear()?,
        }
        Ok(())
    }

    /// The numbers themselves, where they are 32-bit floats of the host.
    pub fn floats(&self) -> Option<&[f32]> {
        match self {
            Numbers::F32(slice) => Some(slice),
            Numbers::Bf16(_) | Numbers::Device(_) => None,
        }
    }

    /// The numbers themselves to change, where they are 32-bit floats of the host.
    pub fn floats_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            Numbers::F32(slice) => Some(slice),
            Numbers::Bf16(_) | Numbers::Device(_) => None,
        }
    }

    /// The numbers where a GPU has them.
    pub fn on_device(&self) -> Option<&OnDevice> {
        match self {
            Numbers::Device(there) => Some(there),
            Numbers::F32(_) | Numbers::Bf16(_) => None,
        }
    }

    /// The numbers to change, where a GPU has them.
    pub fn on_device_mut(&mut self) -> Option<&mut OnDevice> {
        match self {
            Numbers::Device(there) => Some(there),
            Numbers::F32(_) | Numbers::Bf16(_) => None,
        }
    }

    /// The numbers in `range` as 32-bit floats of the host: themselves, widened, or copied.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn view(&self, memory: &Memory, range: Range<usize>) -> Result<View<'_>> {
        if let Numbers::F32(slice) = self {
            return Ok(View::Same(&slice[range]));
        }
        let mut wide = memory.take(Class::Buffers, range.len());
        self.widen(range, &mut wide)?;
        Ok(View::Wide(wide))
    }

    /// Lends the numbers in `range` as 32-bit floats of the host that may be changed.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn lend<R>(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        body: impl FnOnce(&mut [f32]) -> R,
    ) -> Result<R> {
        if let Numbers::F32(slice) = self {
            return Ok(body(&mut slice[range]));
        }
        let mut wide = memory.take(Class::Buffers, range.len());
        self.widen(range.clone(), &mut wide)?;
        let result = body(&mut wide);
        self.narrow(range, &wide)?;
        Ok(result)
    }

    /// Puts the numbers in `range` into `into`, as 32-bit floats.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn widen(&self, range: Range<usize>, into: &mut [f32]) -> Result<()> {
        match self {
            Numbers::F32(slice) => into.copy_from_slice(&slice[range]),
            Numbers::Bf16(slice) => widen(into, &slice[range]),
            Numbers::Device(there) => there.read(range, into)?,
        }
        Ok(())
    }

    /// Puts `from` where `range` says, rounded to the nearest, ties to even.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn narrow(&mut self, range: Range<usize>, from: &[f32]) -> Result<()> {
        match self {
            Numbers::F32(slice) => slice[range].copy_from_slice(from),
            Numbers::Bf16(slice) => narrow(&mut slice[range], from),
            Numbers::Device(there) => there.write(range, from)?,
        }
        Ok(())
    }

    /// Puts the numbers `of` of `from`, which lie at the same place, where `range` says, in this type.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn put(&mut self, range: Range<usize>, from: &Self, of: Range<usize>) -> Result<()> {
        match (self, from) {
            (Numbers::Device(there), Numbers::Device(from)) => there.put(range, from, of),
            (Numbers::F32(into), from) => from.widen(of, &mut into[range]),
            (into, Numbers::F32(from)) => into.narrow(range, &from[of]),
            (Numbers::Bf16(into), Numbers::Bf16(from)) => {
                into[range].copy_from_slice(&from[of]);
                Ok(())
            }
            _ => unreachable!("flat memory of one rank lies at one place"),
        }
    }

    /// Takes the values of `other`, of the same type and number.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn copy_from(&mut self, other: &Self) -> Result<()> {
        self.put(0..self.len(), other, 0..other.len())
    }

    /// Adds `other`, number by number.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn add(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Numbers::F32(sum), Numbers::F32(other)) => add(sum, other),
            (Numbers::Bf16(sum), Numbers::Bf16(other)) => add(sum, other),
            (Numbers::Device(sum), Numbers::Device(other)) => sum.add(other)?,
            _ => unreachable!("buckets and their shares have one type and place"),
        }
        Ok(())
    }

    /// Divides all by `ranks`.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn average(&mut self, ranks: u32) -> Result<()> {
        match self {
            Numbers::F32(slice) => average(slice, ranks),
            Numbers::Bf16(slice) => average(slice, ranks),
            Numbers::Device(there) => there.scale(1.0 / ranks as f32)?,
        }
        Ok(())
    }

    /// A copy of another type and class.
    ///
    /// # Errors
    /// As [`Numbers::clear`].
    pub fn converted(&self, memory: &Memory, class: Class, dtype: Dtype) -> Result<Self> {
        if let Numbers::Device(there) = self {
            return there.converted(class, dtype).map(Numbers::Device);
        }
        let mut copy = Self::new(memory, class, dtype, self.len())?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// `count` numbers of the same type that mean nothing yet, at the same place and behind the same work.
    ///
    /// # Errors
    /// Those of [`Numbers::new`].
    pub fn alike(&self, memory: &Memory, class: Class, count: usize) -> Result<Self> {
        match self {
            Numbers::Device(there) => there.alike(class, count).map(Numbers::Device),
            _ => Self::new(memory, class, self.dtype(), count),
        }
    }

    /// Reduces over all ranks, in place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn all_reduce(&mut self, peers: Peers<'_>, reduction: Reduction) -> Result<()> {
        collective!(self, peers, slice, group => group.all_reduce(slice, reduction), slice.all_reduce(group, reduction))
    }

    /// Sums the numbers in `range` over all ranks, in place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn sum_range(&mut self, range: Range<usize>, peers: Peers<'_>) -> Result<()> {
        collective!(self, peers, slice, group => group.all_reduce(&mut slice[range], Sum), slice.sum_range(range, group))
    }

    /// Reduces over all ranks; this rank's share goes to `share`.
    ///
    /// # Errors
    /// Of the collective.
    pub fn reduce_scatter(&self, share: &mut Self, peers: Peers<'_>, reduction: Reduction) -> Result<()> {
        match (self, share, peers) {
            (Numbers::F32(all), Numbers::F32(share), Peers::Host(group)) => {
                group.reduce_scatter(all, share, reduction)
            }
            (Numbers::Bf16(all), Numbers::Bf16(share), Peers::Host(group)) => {
                group.reduce_scatter(all, share, reduction)
            }
            (Numbers::Device(all), Numbers::Device(share), Peers::Device(group)) => {
                all.reduce_scatter(share, group, reduction)
            }
            _ => unreachable!("a group reaches where its numbers lie"),
        }
    }

    /// As [`Numbers::reduce_scatter`], with the share in its place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn reduce_scatter_in_place(&mut self, peers: Peers<'_>, reduction: Reduction) -> Result<()> {
        collective!(self, peers, slice, group => group.reduce_scatter_in_place(slice, reduction), slice.reduce_scatter_in_place(group, reduction))
    }

    /// Puts the shares of all ranks one after the other.
    ///
    /// # Errors
    /// Of the collective.
    pub fn all_gather(&mut self, share: &Self, peers: Peers<'_>) -> Result<()> {
        match (self, share, peers) {
            (Numbers::F32(all), Numbers::F32(share), Peers::Host(group)) => group.all_gather(share, all),
            (Numbers::Bf16(all), Numbers::Bf16(share), Peers::Host(group)) => group.all_gather(share, all),
            (Numbers::Device(all), Numbers::Device(share), Peers::Device(group)) => {
                all.all_gather(share, group)
            }
            _ => unreachable!("a group reaches where its numbers lie"),
        }
    }

    /// As [`Numbers::all_gather`], with this rank's share in its place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn all_gather_in_place(&mut self, peers: Peers<'_>) -> Result<()> {
        collective!(self, peers, slice, group => group.all_gather_in_place(slice), slice.all_gather_in_place(group))
    }

    /// Takes what `root` has.
    ///
    /// # Errors
    /// Of the collective.
    pub fn broadcast(&mut self, peers: Peers<'_>, root: usize) -> Result<()> {
        collective!(self, peers, slice, group => group.broadcast(slice, root), slice.broadcast(group, root))
    }
}

fn add<T: Element>(sum: &mut [T], other: &[T]) {
    reduce_assign(T::DTYPE, Op::Sum, Finish::Keep, as_bytes_mut(sum).into(), &[as_bytes(other).into()]);
}
