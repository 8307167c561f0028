//! The step from pointers to the memory of an operation.

use crate::error::{Failure, argument};
use std::ffi::c_void;
use unisono_core::OpBuffers;
use unisono_core::foreign::{Aliasing, slice, slice_mut};

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

/// The memory of one operation, after the check that it can be slices.
pub(crate) struct CheckedBuffers {
    buffers: RawBuffers,
    /// The longer buffer, if the other is this rank's share of it.
    in_place: Option<(*mut u8, usize)>,
}

// SAFETY: an operation has its memory to itself until it is done, by the contract of `into_slices`.
// The thread that accesses it does not matter.
unsafe impl Send for CheckedBuffers {}

impl RawBuffers {
    /// Checks lengths and addresses. One buffer may be this rank's share of the other.
    pub(crate) fn checked(self) -> Result<CheckedBuffers, Failure> {
        let Self { input, input_bytes, output, output_bytes, own_offset } = self;
        check_memory(input, input_bytes)?;
        check_memory(output, output_bytes)?;
        let (input_place, output_place) = ((input.addr(), input_bytes), (output.addr(), output_bytes));
        let in_place = match Aliasing::of(input_place, output_place, own_offset) {
            Aliasing::Separate => None,
            Aliasing::InPlace if input_bytes <= output_bytes => Some((output, output_bytes)),
            Aliasing::InPlace => Some((input.cast_mut(), input_bytes)),
            Aliasing::Partial => {
                return argument(
                    "input and output overlap, but the shorter is not this rank's share of the longer",
                );
            }
        };
        Ok(CheckedBuffers { buffers: self, in_place })
    }
}

impl CheckedBuffers {
    /// Returns the memory as slices: one slice if one buffer is this rank's share of the other.
    ///
    /// # Safety
    /// The input is valid for reads and the output for writes of their bytes, for the life of the
    /// result. Nobody else accesses them meanwhile. In place, the longer buffer is writable.
    pub(crate) unsafe fn into_slices<'a>(self) -> OpBuffers<'a> {
        let RawBuffers { input, input_bytes, output, output_bytes, .. } = self.buffers;
        match self.in_place {
            // SAFETY: valid and writable by the contract. The shorter buffer is inside, so that the
            // one slice is the only access to both.
            Some((buffer, bytes)) => OpBuffers::InPlace(unsafe { slice_mut(buffer, bytes) }),
            // SAFETY: valid by the contract, and `checked` found them disjoint. Empty slices need
            // no memory.
            None => unsafe {
                OpBuffers::Separate {
                    input: slice(input, input_bytes),
                    output: slice_mut(output, output_bytes),
                }
            },
        }
    }
}

/// Fails if no memory can begin at `pointer` and have so many bytes.
pub(crate) fn check_memory(pointer: *const u8, bytes: usize) -> Result<(), Failure> {
    if bytes > 0 && pointer.is_null() {
        return argument("a buffer is NULL");
    }
    if bytes > isize::MAX as usize || pointer.addr().checked_add(bytes).is_none() {
        return argument(format!("{bytes} bytes are more than memory can hold"));
    }
    Ok(())
}

/// Returns the memory of an operation in which input and output must not overlap.
///
/// # Safety
/// As [`CheckedBuffers::into_slices`].
pub(crate) unsafe fn disjoint<'a>(
    (input, input_bytes): (*const c_void, usize),
    (output, output_bytes): (*mut c_void, usize),
) -> Result<(&'a [u8], &'a mut [u8]), Failure> {
    let (input, output) = (input.cast(), output.cast());
    let buffers = RawBuffers { input, input_bytes, output, output_bytes, own_offset: 0 };
    // SAFETY: by the contract.
    match unsafe { buffers.checked()?.into_slices() } {
        OpBuffers::Separate { input, output } => Ok((input, output)),
        OpBuffers::InPlace(_) => argument("input and output overlap"),
    }
}
