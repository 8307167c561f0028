//! The state of a communicator and of the library, as texts and numbers.

use crate::comm::{UnisonoComm, comm_ref, store, write_text};
use crate::error::{argument, guard};
use std::ffi::c_char;

/// Returns the version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Stores the code of the error that ended a communicator, or 0, and writes its text.
///
/// # Safety
/// `comm` is null or a handle; `code` is null or valid for writes; `text` is null or valid for
/// writes of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_error(
    comm: *const UnisonoComm,
    code: *mut u32,
    text: *mut c_char,
    bytes: usize,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let error = unsafe { comm_ref(comm) }?.error();
        // SAFETY: by the contract.
        unsafe { store(code, error.as_ref().map_or(0, |error| error.code())) }?;
        let message = error.map_or(String::new(), |error| error.to_string().replace('\0', " "));
        if !text.is_null() && bytes > 0 {
            let ends = 0..=message.len().min(bytes - 1);
            let end = ends.rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
            // SAFETY: by the contract, there is room for so many bytes and the NUL.
            unsafe { write_text(text, &message[..end]) };
        }
        Ok(())
    })
}

/// Writes the last operations of this rank as JSON, with a NUL, into `bytes` bytes at `json`.
///
/// # Safety
/// `comm` is null or a handle; `json` is null or valid for writes of `bytes` bytes; `needed` is
/// null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_flight_record(
    comm: *const UnisonoComm,
    json: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let record = unsafe { comm_ref(comm) }?.flight_record().to_json();
        if !needed.is_null() {
            // SAFETY: by the contract.
            unsafe { store(needed, record.len() + 1) }?;
        }
        if json.is_null() || bytes <= record.len() {
            return argument(format!("the record needs {} bytes, not {bytes}", record.len() + 1));
        }
        // SAFETY: by the contract, there is room for the text and its NUL.
        unsafe { write_text(json, &record) };
        Ok(())
    })
}
