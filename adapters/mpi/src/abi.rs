//! The types of the MPI ABI, and the values that have a meaning in it.

use std::ffi::{c_int, c_void};

/// A handle of any kind: communicator, datatype, operation, request.
pub(crate) type Handle = usize;

/// The result of a receive. The bytes before `source` belong to the library.
#[repr(C)]
pub(crate) struct Status {
    unused: [c_int; 4],
    /// Number of bytes that were received.
    pub(crate) bytes: usize,
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    pub(crate) error: c_int,
}

impl Status {
    pub(crate) fn new(source: c_int, tag: c_int, bytes: usize) -> Self {
        Self { unused: [0; 4], bytes, source, tag, error: SUCCESS }
    }
}

const _: () = assert!(size_of::<Status>() == 40, "ten Fortran integers");

pub(crate) const SUCCESS: c_int = 0;
/// The `MPI_Request` of no operation.
pub(crate) const REQUEST_NULL: Handle = 0;
pub(crate) const COMM_NULL: Handle = 0;
pub(crate) const COMM_WORLD: Handle = 1;
pub(crate) const COMM_SELF: Handle = 2;
/// The color of a rank that joins no group.
pub(crate) const UNDEFINED: c_int = -32766;
pub(crate) const ANY_SOURCE: c_int = -1;
pub(crate) const ANY_TAG: c_int = -2;
pub(crate) const PROC_NULL: c_int = -3;
pub(crate) const THREAD_SINGLE: c_int = 0;
pub(crate) const THREAD_FUNNELED: c_int = 1;
pub(crate) const THREAD_SERIALIZED: c_int = 2;
pub(crate) const THREAD_MULTIPLE: c_int = 3;
/// The address that stands for "the input is in the output".
pub(crate) const IN_PLACE: usize = 1;
pub(crate) const VERSION: [c_int; 2] = [3, 1];
/// Bytes of the texts that callers provide room for.
pub(crate) const MAX_ERROR_STRING: usize = 1024;
pub(crate) const MAX_LIBRARY_VERSION_STRING: usize = 8192;
pub(crate) const MAX_PROCESSOR_NAME: usize = 256;

/// The error classes. The other codes of MPI are not returned by this library.
pub(crate) mod class {
    use std::ffi::c_int;

    pub(crate) const BUFFER: c_int = 1;
    pub(crate) const COUNT: c_int = 2;
    pub(crate) const TYPE: c_int = 3;
    pub(crate) const TAG: c_int = 4;
    pub(crate) const COMM: c_int = 5;
    pub(crate) const RANK: c_int = 6;
    pub(crate) const REQUEST: c_int = 7;
    pub(crate) const ROOT: c_int = 8;
    pub(crate) const OP: c_int = 10;
    pub(crate) const ARG: c_int = 13;
    pub(crate) const TRUNCATE: c_int = 15;
    pub(crate) const OTHER: c_int = 16;
    pub(crate) const INTERN: c_int = 17;
    pub(crate) const UNSUPPORTED_OPERATION: c_int = 18;
}

/// Returns true for the address that stands for "the input is in the output".
pub(crate) fn is_in_place(buffer: *const c_void) -> bool {
    buffer.addr() == IN_PLACE
}
