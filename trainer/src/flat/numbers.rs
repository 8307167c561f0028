//! Typed flat memory: 32-bit or 16-bit numbers, and the collectives on them.

use crate::memory::{Class, Floats, Memory, Storage};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, Range};
use unisono::{Communicator, Element, Op, Reduction, Result, Sum, bf16};
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

/// Runs `$body` with `$numbers` as the slice that it is.
macro_rules! typed {
    ($numbers:expr, $slice:ident => $body:expr) => {
        match $numbers {
            Numbers::F32($slice) => $body,
            Numbers::Bf16($slice) => $body,
        }
    };
}

/// As `typed!`, with two of the same type.
macro_rules! both {
    ($one:expr, $other:expr, $a:ident, $b:ident => $body:expr) => {
        match ($one, $other) {
            (Numbers::F32($a), Numbers::F32($b)) => $body,
            (Numbers::Bf16($a), Numbers::Bf16($b)) => $body,
            _ => unreachable!("buckets and their shares have one type"),
        }
    };
}

impl Numbers {
    /// `count` numbers that mean nothing yet.
    pub fn new(memory: &Memory, class: Class, dtype: Dtype, count: usize) -> Self {
        match dtype {
            Dtype::F32 => Numbers::F32(memory.take(class, count)),
            Dtype::Bf16 => Numbers::Bf16(memory.take(class, count)),
        }
    }

    /// `count` zeros.
    pub fn zeros(memory: &Memory, class: Class, dtype: Dtype, count: usize) -> Self {
        match dtype {
            Dtype::F32 => Numbers::F32(memory.zeros(class, count)),
            Dtype::Bf16 => Numbers::Bf16(memory.zeros(class, count)),
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        typed!(self, slice => slice.len())
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
        }
    }

    /// Sets all to zero.
    pub fn clear(&mut self) {
        match self {
            Numbers::F32(slice) => slice.fill(0.0),
            Numbers::Bf16(slice) => slice.fill(bf16::ZERO),
        }
    }

    /// The numbers themselves, where they are 32-bit floats.
    pub fn floats(&self) -> Option<&[f32]> {
        match self {
            Numbers::F32(slice) => Some(slice),
            Numbers::Bf16(_) => None,
        }
    }

    /// The numbers themselves to change, where they are 32-bit floats.
    pub fn floats_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            Numbers::F32(slice) => Some(slice),
            Numbers::Bf16(_) => None,
        }
    }

    /// The numbers in `range` as 32-bit floats: themselves, or widened.
    pub fn view(&self, memory: &Memory, range: Range<usize>) -> View<'_> {
        match self {
            Numbers::F32(slice) => View::Same(&slice[range]),
            Numbers::Bf16(_) => {
                let mut wide = memory.take(Class::Buffers, range.len());
                self.widen(range, &mut wide);
                View::Wide(wide)
            }
        }
    }

    /// Lends the numbers in `range` as 32-bit floats that may be changed.
    pub fn lend<R>(&mut self, memory: &Memory, range: Range<usize>, body: impl FnOnce(&mut [f32]) -> R) -> R {
        if let Numbers::F32(slice) = self {
            return body(&mut slice[range]);
        }
        let mut wide = memory.take(Class::Buffers, range.len());
        self.widen(range.clone(), &mut wide);
        let result = body(&mut wide);
        self.narrow(range, &wide);
        result
    }

    /// Puts the numbers in `range` into `into`, as 32-bit floats.
    pub fn widen(&self, range: Range<usize>, into: &mut [f32]) {
        match self {
            Numbers::F32(slice) => into.copy_from_slice(&slice[range]),
            Numbers::Bf16(slice) => widen(into, &slice[range]),
        }
    }

    /// Puts `from` where `range` says, rounded to the nearest, ties to even.
    pub fn narrow(&mut self, range: Range<usize>, from: &[f32]) {
        match self {
            Numbers::F32(slice) => slice[range].copy_from_slice(from),
            Numbers::Bf16(slice) => narrow(&mut slice[range], from),
        }
    }

    /// Takes the values of `other`, of the same type and number.
    pub fn copy_from(&mut self, other: &Self) {
        both!(self, other, into, from => into.copy_from_slice(from));
    }

    /// Adds `other`, number by number.
    pub fn add(&mut self, other: &Self) {
        both!(self, other, sum, other => add(sum, other));
    }

    /// Divides all by `ranks`.
    pub fn average(&mut self, ranks: u32) {
        typed!(self, slice => average(slice, ranks));
    }

    /// A copy of another type and class.
    pub fn converted(&self, memory: &Memory, class: Class, dtype: Dtype) -> Self {
        let mut copy = Self::new(memory, class, dtype, self.len());
        match (self, &mut copy) {
            (Numbers::F32(from), into) => into.narrow(0..from.len(), from),
            (from, Numbers::F32(into)) => from.widen(0..into.len(), into),
            (Numbers::Bf16(from), Numbers::Bf16(into)) => into.copy_from_slice(from),
        }
        copy
    }

    /// Reduces over all ranks, in place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn all_reduce(&mut self, comm: &Communicator, reduction: Reduction) -> Result<()> {
        typed!(self, slice => comm.all_reduce(slice, reduction))
    }

    /// Sums the numbers in `range` over all ranks, in place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn sum_range(&mut self, range: Range<usize>, comm: &Communicator) -> Result<()> {
        typed!(self, slice => comm.all_reduce(&mut slice[range], Sum))
    }

    /// Reduces over all ranks; this rank's share goes to `share`.
    ///
    /// # Errors
    /// Of the collective.
    pub fn reduce_scatter(&self, share: &mut Self, comm: &Communicator, reduction: Reduction) -> Result<()> {
        both!(self, share, all, share => comm.reduce_scatter(all, share, reduction))
    }

    /// As [`Numbers::reduce_scatter`], with the share in its place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn reduce_scatter_in_place(&mut self, comm: &Communicator, reduction: Reduction) -> Result<()> {
        typed!(self, slice => comm.reduce_scatter_in_place(slice, reduction))
    }

    /// Puts the shares of all ranks one after the other.
    ///
    /// # Errors
    /// Of the collective.
    pub fn all_gather(&mut self, share: &Self, comm: &Communicator) -> Result<()> {
        both!(self, share, all, share => comm.all_gather(share, all))
    }

    /// As [`Numbers::all_gather`], with this rank's share in its place.
    ///
    /// # Errors
    /// Of the collective.
    pub fn all_gather_in_place(&mut self, comm: &Communicator) -> Result<()> {
        typed!(self, slice => comm.all_gather_in_place(slice))
    }

    /// Takes what `root` has.
    ///
    /// # Errors
    /// Of the collective.
    pub fn broadcast(&mut self, comm: &Communicator, root: usize) -> Result<()> {
        typed!(self, slice => comm.broadcast(slice, root))
    }
}

fn add<T: Element>(sum: &mut [T], other: &[T]) {
    reduce_assign(T::DTYPE, Op::Sum, Finish::Keep, as_bytes_mut(sum).into(), &[as_bytes(other).into()]);
}
