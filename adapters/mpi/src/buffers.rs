//! The step from pointers to the memory of an operation.

use crate::abi::{class, is_in_place};
use crate::error::{Outcome, fail};
use unisono::OpBuffers;
use unisono::foreign::{Aliasing, slice, slice_mut};

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
        check_address(input, input_bytes)?;
        check_address(output, output_bytes)?;
        let (input_place, output_place) = ((input.addr(), input_bytes), (output.addr(), output_bytes));
        // SAFETY: valid by the contract. In place, the output is the only access to both buffers;
        // else the input is disjoint from it by the comparison, or copied before it is made.
        unsafe {
            match Aliasing::of(input_place, output_place, own_offset) {
                Aliasing::Separate => {
                    let (input, output) = (slice(input, input_bytes), slice_mut(output, output_bytes));
                    run(OpBuffers::Separate { input, output })
                }
                Aliasing::InPlace if input_bytes <= output_bytes => {
                    run(OpBuffers::InPlace(slice_mut(output, output_bytes)))
                }
                Aliasing::InPlace | Aliasing::Partial => {
                    let input = slice(input, input_bytes).to_vec();
                    run(OpBuffers::Separate { input: &input, output: slice_mut(output, output_bytes) })
                }
            }
        }
    }
}

/// Refuses bytes at an address that stands for no memory.
pub(crate) fn check_address(buffer: *const u8, bytes: usize) -> Outcome {
    match bytes > 0 {
        true if buffer.is_null() => fail(class::BUFFER, "a buffer is NULL"),
        true if is_in_place(buffer.cast()) => {
            fail(class::BUFFER, "MPI_IN_PLACE stands for a buffer that this call needs; give it memory")
        }
        _ => Ok(()),
    }
}
