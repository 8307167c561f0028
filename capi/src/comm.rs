//! Communicators as handles.

use crate::error::{Failure, argument, guard};
use std::ffi::{CStr, c_char};
use unisono_core::transport::text::without_secrets;
use unisono_core::{Communicator, Config, UniqueId};

/// A communicator behind a pointer of C.
pub struct UnisonoComm(Communicator);

/// Returns the communicator of a handle.
///
/// # Safety
/// `comm` is null or a handle that was not destroyed.
pub(crate) unsafe fn comm_ref<'c>(comm: *const UnisonoComm) -> Result<&'c Communicator, Failure> {
    // SAFETY: by the contract; null is handled.
    match unsafe { comm.as_ref() } {
        Some(handle) => Ok(&handle.0),
        None => argument("the communicator is NULL"),
    }
}

/// Stores `value` where the caller wants it.
///
/// # Safety
/// `place` is null or valid for writes.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return argument("the place for the result is NULL");
    }
    // SAFETY: by the contract.
    unsafe { place.write(value) };
    Ok(())
}

/// # Safety
/// `text` is null or a string that ends with NUL.
unsafe fn text<'t>(text: *const c_char, name: &str) -> Result<&'t str, Failure> {
    if text.is_null() {
        return argument(format!("{name} is NULL"));
    }
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(text) }.to_str().or_else(|_| argument(format!("{name} is not UTF-8")))
}

/// Returns the unique id that a text is.
///
/// # Safety
/// `id` is null or a string that ends with NUL.
pub(crate) unsafe fn id_of(id: *const c_char) -> Result<UniqueId, Failure> {
    // SAFETY: by the contract.
    Ok(unsafe { text(id, "the unique id") }?.parse()?)
}

/// Writes a text and its NUL.
///
/// # Safety
/// `place` is valid for writes of the text and its NUL.
pub(crate) unsafe fn write_text(place: *mut c_char, text: &str) {
    // SAFETY: by the contract.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        place.add(text.len()).write(0);
    }
}

pub(crate) fn handle(comm: Communicator) -> *mut UnisonoComm {
    Box::into_raw(Box::new(UnisonoComm(comm)))
}

/// Connects to the other ranks with the settings that the launcher has put into the environment.
///
/// # Safety
/// `comm` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_from_env(comm: *mut *mut UnisonoComm) -> u32 {
    // SAFETY: by the contract.
    guard(|| unsafe {
        store(comm, std::ptr::null_mut()).and_then(|()| store(comm, handle(Communicator::from_env()?)))
    })
}

/// Makes the communicators of `size` ranks that are threads of this process. `comms` keeps its
/// contents if the call fails.
///
/// # Safety
/// `comms` is null or valid for writes of `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_local(size: usize, comms: *mut *mut UnisonoComm) -> u32 {
    guard(|| {
        if comms.is_null() {
            return argument("the place for the communicators is NULL");
        }
        for (rank, comm) in Communicator::local(size)?.into_iter().enumerate() {
            // SAFETY: by the contract, `rank` is below `size`.
            unsafe { comms.add(rank).write(handle(comm)) };
        }
        Ok(())
    })
}

/// Connects to the ranks that have the same unique id. `settings` are `name=value` lines or null.
///
/// # Safety
/// `id` and `settings` are null or strings; `comm` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_join(
    id: *const c_char,
    rank: usize,
    size: usize,
    settings: *const c_char,
    comm: *mut *mut UnisonoComm,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { store(comm, std::ptr::null_mut()) }?;
        // SAFETY: by the contract.
        let id = unsafe { id_of(id) }?;
        // SAFETY: by the contract.
        let settings = if settings.is_null() { "" } else { unsafe { text(settings, "settings") }? };
        let pairs = settings.lines().filter(|line| !line.is_empty());
        let pairs: Vec<(&str, &str)> = pairs.map(|line| line.split_once('=').unwrap_or((line, ""))).collect();
        let config = Config::from_env()?.with_settings(pairs)?;
        // SAFETY: by the contract.
        unsafe { store(comm, handle(Communicator::join(&id, rank, size, &config)?)) }
    })
}

/// Writes a new unique id, with its NUL, into `bytes` bytes at `id`.
///
/// # Safety
/// `interface` is null or a string; `id` is null or valid for writes of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_unique_id(interface: *const c_char, id: *mut c_char, bytes: usize) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let interface = unsafe { text(interface, "the interface") }?;
        let Ok(address) = interface.parse() else {
            return argument(format!("`{}` is no IP address", without_secrets(interface)));
        };
        let unique = UniqueId::on(address)?;
        let needed = unique.to_string().len() + 1;
        if id.is_null() || bytes < needed {
            return argument(format!("a unique id needs {needed} bytes, not {bytes}"));
        }
        let made = unique.into_reserved_text();
        // SAFETY: by the contract, there is room for the text and its NUL.
        unsafe { write_text(id, &made) };
        Ok(())
    })
}

/// Ends a communicator. Null is allowed.
///
/// # Safety
/// `comm` is null or a handle that was not destroyed, and no call on it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_destroy(comm: *mut UnisonoComm) -> u32 {
    guard(|| {
        if !comm.is_null() {
            // SAFETY: made by `handle`, and by the contract not destroyed before.
            drop(unsafe { Box::from_raw(comm) });
        }
        Ok(())
    })
}

/// Stores the rank of this communicator.
///
/// # Safety
/// `comm` is null or a handle; `rank` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_rank(comm: *const UnisonoComm, rank: *mut usize) -> u32 {
    // SAFETY: by the contract.
    guard(|| unsafe { store(rank, comm_ref(comm)?.rank()) })
}

/// Stores the number of ranks of this communicator.
///
/// # Safety
/// `comm` is null or a handle; `size` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_size(comm: *const UnisonoComm, size: *mut usize) -> u32 {
    // SAFETY: by the contract.
    guard(|| unsafe { store(size, comm_ref(comm)?.size()) })
}

/// Ends the operations of a communicator on all ranks.
///
/// # Safety
/// `comm` is null or a handle; `reason` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_abort(comm: *const UnisonoComm, reason: *const c_char) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { comm_ref(comm)?.abort(text(reason, "the reason")?) };
        Ok(())
    })
}
