//! The step from pointers to the memory of an operation.

use crate::abi::class;
use crate::error::{Outcome, fail};
use unisono::OpBuffers;

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
    /// Calls `run` with the memory as slices. Input that overlaps the output is used in place where
    /// the operation can, and else copied aside first.
    ///
    /// # Safety
    /// The input is valid for reads and the output for reads and writes of their bytes. Nobody else
    /// accesses them during the call.
    pub(crate) unsafe fn with_slices(self, run: impl FnOnce(OpBuffers<'_>) -> Outcome) -> Outcome {
        let Self { input, input_bytes, output, output_bytes, own_offset } = self;
        if input.is_null() && input_bytes > 0 || output.is_null() && output_bytes > 0 {
            return fail(class::BUFFER, "a buffer is NULL");
        }
        let (from, into) = (input.addr(), output.addr());
        let overlaps = input_bytes > 0
            && output_bytes > 0
            && from < into.saturating_add(output_bytes)
            && into < from.saturating_add(input_bytes);
        let own = if input_bytes == output_bytes { 0 } else { own_offset };
        // SAFETY: valid by the contract. In place, this slice is the only access to both buffers;
        // else the input is disjoint from it by the comparison, or copied before it is made.
        unsafe {
            if overlaps && input_bytes <= output_bytes && from == into + own {
                return run(OpBuffers::InPlace(slice_mut(output, output_bytes)));
            }
            if overlaps {
                let input = slice(input, input_bytes).to_vec();
                return run(OpBuffers::Separate { input: &input, output: slice_mut(output, output_bytes) });
            }
            let (input, output) = (slice(input, input_bytes), slice_mut(output, output_bytes));
            run(OpBuffers::Separate { input, output })
        }
    }
}

/// # Safety
/// `bytes` bytes at `pointer` are valid for reads, unless there are none.
pub(crate) unsafe fn slice<'a>(pointer: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: valid by the contract.
    unsafe { std::slice::from_raw_parts(pointer, bytes) }
}

/// # Safety
/// `bytes` bytes at `pointer` are valid for reads and writes, unless there are none.
pub(crate) unsafe fn slice_mut<'a>(pointer: *mut u8, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: valid by the contract.
    unsafe { std::slice::from_raw_parts_mut(pointer, bytes) }
}
