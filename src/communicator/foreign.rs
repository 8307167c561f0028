//! The memory of operations that bindings to other languages describe by pointers.
//!
//! The unsafe step from pointers to slices is here once: [`slice()`], [`slice_mut`] and
//! [`RawMemory`]. [`Aliasing`] tells which form of [`OpBuffers`](crate::OpBuffers) fits two
//! buffers.

pub use unisono_cuda::raw::{RawMemory, slice, slice_mut};

use crate::communicator::{RecvBuffer, SendBuffer};

impl SendBuffer for RawMemory {
    fn message(&self) -> &[u8] {
        self.as_slice()
    }
}

impl RecvBuffer for RawMemory {
    fn message_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// The memory that input and output of an operation share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aliasing {
    /// They share none.
    Separate,
    /// The shorter one is this rank's share of the longer one, or both are the same.
    InPlace,
    /// They share memory in another way.
    Partial,
}

impl Aliasing {
    /// Compares the addresses and the lengths of input and output. `own_offset` is the offset of
    /// this rank's share in the longer one.
    ///
    /// ```
    /// use unisono::foreign::Aliasing;
    ///
    /// // An all_gather of rank 2, whose input lies in its output.
    /// assert_eq!(Aliasing::of((0x1020, 16), (0x1000, 64), 32), Aliasing::InPlace);
    /// assert_eq!(Aliasing::of((0x1010, 16), (0x1000, 64), 32), Aliasing::Partial);
    /// assert_eq!(Aliasing::of((0x1040, 16), (0x1000, 64), 32), Aliasing::Separate);
    /// ```
    pub fn of(
        (input, input_bytes): (usize, usize),
        (output, output_bytes): (usize, usize),
        own_offset: usize,
    ) -> Self {
        let overlaps = input_bytes > 0
            && output_bytes > 0
            && input < output.saturating_add(output_bytes)
            && output < input.saturating_add(input_bytes);
        let (shorter, longer) = if input_bytes <= output_bytes { (input, output) } else { (output, input) };
        let own = if input_bytes == output_bytes { 0 } else { own_offset };
        match overlaps {
            false => Aliasing::Separate,
            true if longer.checked_add(own) == Some(shorter) => Aliasing::InPlace,
            true => Aliasing::Partial,
        }
    }
}
