//! Questions about the library, the host, the time, and errors.

use crate::abi::{Handle, MAX_ERROR_STRING, MAX_LIBRARY_VERSION_STRING, MAX_PROCESSOR_NAME, VERSION, class};
use crate::datatype;
use crate::error::{fail, guard, text_of};
use crate::world::{store, store_text};
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;
use std::time::Instant;

/// # Safety
/// `version` and `subversion` are null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Get_version(version: *mut c_int, subversion: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Get_version", || unsafe {
        store(version, VERSION[0]).and_then(|()| store(subversion, VERSION[1]))
    })
}

/// # Safety
/// `text` is null or valid for writes of `MPI_MAX_LIBRARY_VERSION_STRING` bytes; `length` is null
/// or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Get_library_version(text: *mut c_char, length: *mut c_int) -> c_int {
    let version = concat!("unisono ", env!("CARGO_PKG_VERSION"));
    // SAFETY: by the contract.
    guard("MPI_Get_library_version", || unsafe {
        store_text(text.cast(), length, MAX_LIBRARY_VERSION_STRING, version)
    })
}

/// Stores the name of the host.
///
/// # Safety
/// `text` is null or valid for writes of `MPI_MAX_PROCESSOR_NAME` bytes; `length` is null or valid
/// for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Get_processor_name(text: *mut c_char, length: *mut c_int) -> c_int {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // SAFETY: by the contract.
    guard("MPI_Get_processor_name", || unsafe { store_text(text.cast(), length, MAX_PROCESSOR_NAME, &host) })
}

/// Stores the text of a code: the whole text of this thread's last error, if it had this code.
///
/// # Safety
/// `text` is null or valid for writes of `MPI_MAX_ERROR_STRING` bytes; `length` is null or valid
/// for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Error_string(code: c_int, text: *mut c_char, length: *mut c_int) -> c_int {
    let found = text_of(code);
    // SAFETY: by the contract.
    guard("MPI_Error_string", || unsafe { store_text(text.cast(), length, MAX_ERROR_STRING, &found) })
}

/// Stores the class of a code. This library returns only classes.
///
/// # Safety
/// `found` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Error_class(code: c_int, found: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Error_class", || unsafe { store(found, code) })
}

/// Stores the bytes of one element.
///
/// # Safety
/// `size` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Type_size(datatype: Handle, size: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Type_size", || unsafe {
        match datatype::read(datatype)? {
            (datatype::Kind::Pair, _) => {
                fail(class::TYPE, "pairs of a value and an index are not implemented")
            }
            (_, bytes) => store(size, bytes as c_int),
        }
    })
}

/// Returns the seconds since the first call.
#[unsafe(no_mangle)]
extern "C" fn MPIABI_Wtime() -> f64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Returns the resolution of `MPI_Wtime` in seconds.
#[unsafe(no_mangle)]
extern "C" fn MPIABI_Wtick() -> f64 {
    1e-9
}

#[unsafe(no_mangle)]
extern "C" fn MPIABI_Aint_add(base: isize, displacement: isize) -> isize {
    base.wrapping_add(displacement)
}

#[unsafe(no_mangle)]
extern "C" fn MPIABI_Aint_diff(left: isize, right: isize) -> isize {
    left.wrapping_sub(right)
}

/// Defines the conversions between handles and Fortran integers. Handles are small numbers.
macro_rules! fortran_handles {
    ($($to_c:ident $to_fortran:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $to_c(handle: c_int) -> Handle {
            handle as Handle
        }

        #[unsafe(no_mangle)]
        extern "C" fn $to_fortran(handle: Handle) -> c_int {
            handle as c_int
        }
    )*};
}

fortran_handles! {
    MPIABI_Comm_f2c MPIABI_Comm_c2f
    MPIABI_Errhandler_f2c MPIABI_Errhandler_c2f
    MPIABI_File_f2c MPIABI_File_c2f
    MPIABI_Group_f2c MPIABI_Group_c2f
    MPIABI_Info_f2c MPIABI_Info_c2f
    MPIABI_Message_f2c MPIABI_Message_c2f
    MPIABI_Op_f2c MPIABI_Op_c2f
    MPIABI_Request_f2c MPIABI_Request_c2f
    MPIABI_Type_f2c MPIABI_Type_c2f
    MPIABI_Win_f2c MPIABI_Win_c2f
}
