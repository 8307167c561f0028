//! The step from pointers to the memory of an operation.

use crate::error::{Failure, argument};
use unisono_core::OpBuffers;

/// The memory of one operation, as C gives it.
#[derive(Clone, Copy)]
pub(crate) struct RawBuffers {
    pub(crate) input: *const u8,
    pub(crate) input_bytes: usize,
    pub(crate) output: *mut u8,
    pub(crate) output_bytes: usize,
    /// Offset of this rank's share in the longer buffer.
    pub(crate) own_offset: usize,
}

impl RawBuffers {
    /// Returns the memory as slices: in place if one buffer is this rank's share of the other.
    ///
    /// # Safety
    /// The input is valid for reads and the output for writes of their bytes, for the life of the
    /// result. Nobody else accesses them meanwhile. In place, the longer buffer is writable.
    pub(crate) unsafe fn to_slices<'a>(self) -> Result<OpBuffers<'a>, Failure> {
        let Self { input, input_bytes, output, output_bytes, own_offset } = self;
        if input.is_null() && input_bytes > 0 || output.is_null() && output_bytes > 0 {
            return argument("a buffer is NULL");
        }
        let (from, into) = (input.addr(), output.addr());
        let overlaps = input_bytes > 0
            && output_bytes > 0
            && from < into.saturating_add(output_bytes)
            && into < from.saturating_add(input_bytes);
        if !overlaps {
            // SAFETY: valid by the contract, and disjoint by the comparison. Empty slices need no
            // memory.
            return Ok(unsafe {
                OpBuffers::Separate {
                    input: slice(input, input_bytes),
                    output: slice_mut(output, output_bytes),
                }
            });
        }
        let own = if input_bytes == output_bytes { 0 } else { own_offset };
        if input_bytes <= output_bytes && from == into + own {
            // SAFETY: valid and writable by the contract. The shorter buffer is inside, so that the
            // one slice is the only access to both.
            return Ok(OpBuffers::InPlace(unsafe { slice_mut(output, output_bytes) }));
        }
        if input_bytes > output_bytes && into == from + own {
            // SAFETY: as above.
            return Ok(OpBuffers::InPlace(unsafe { slice_mut(input.cast_mut(), input_bytes) }));
        }
        argument("input and output overlap, but the shorter is not this rank's share of the longer")
    }
}

/// # Safety
/// `bytes` bytes at `pointer` are valid for reads, unless there are none.
unsafe fn slice<'a>(pointer: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: valid by the contract.
    unsafe { std::slice::from_raw_parts(pointer, bytes) }
}

/// # Safety
/// `bytes` bytes at `pointer` are valid for reads and writes, unless there are none.
unsafe fn slice_mut<'a>(pointer: *mut u8, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: valid by the contract.
    unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
}
