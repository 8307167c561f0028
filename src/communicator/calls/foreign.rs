//! Access to memory that bindings to other languages describe by pointers.
//!
//! All unsafe code that makes slices of pointers is here, in [`slice()`], [`slice_mut`] and
//! [`RawMemory`]. [`Aliasing`] says which form of [`OpBuffers`](crate::OpBuffers) fits two buffers.
//! [`written_is_shared`] says if more than two buffers can be slices.

pub use unisono_reducers::raw::{RawMemory, slice, slice_mut};

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
    /// Input and output share no memory.
    Separate,
    /// Input and output are the same memory, or the shorter one is the share of this rank in the
    /// longer one.
    InPlace,
    /// Input and output share memory in another way.
    Partial,
}

impl Aliasing {
    /// Compares the addresses and the lengths of input and output. `own_offset` is the offset of
    /// this rank's share in the longer buffer.
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
        let offset = if input_bytes == output_bytes { 0 } else { own_offset };
        match overlaps {
            false => Aliasing::Separate,
            true if longer.checked_add(offset) == Some(shorter) => Aliasing::InPlace,
            true => Aliasing::Partial,
        }
    }
}

/// Returns true if a buffer of `writes` overlaps a buffer of `reads` or another buffer of `writes`.
///
/// Each buffer is an address and a length in bytes. Buffers that are only read may overlap.
///
/// ```
/// use unisono::foreign::written_is_shared;
///
/// let (sends, receives) = ([(0x1000, 64), (0x1020, 8)], [(0x1040, 8), (0x1048, 8)]);
/// assert!(!written_is_shared(&sends, &receives));
/// assert!(written_is_shared(&sends, &[(0x1030, 4)]));
/// assert!(written_is_shared(&[], &[(0x1000, 8), (0x1004, 8)]));
/// ```
pub fn written_is_shared(reads: &[(usize, usize)], writes: &[(usize, usize)]) -> bool {
    let places = reads.iter().map(|&place| (place, false)).chain(writes.iter().map(|&place| (place, true)));
    let mut places: Vec<_> = places.filter(|((_, bytes), _)| *bytes > 0).collect();
    places.sort_unstable();
    let (mut read_until, mut written_until) = (0, 0);
    // The buffers are in the order of their addresses. So a buffer overlaps an earlier one only if
    // it begins before the furthest end so far.
    for ((address, bytes), is_written) in places {
        let taken_until = if is_written { written_until.max(read_until) } else { written_until };
        if address < taken_until {
            return true;
        }
        let end = if is_written { &mut written_until } else { &mut read_until };
        *end = address.saturating_add(bytes).max(*end);
    }
    false
}
