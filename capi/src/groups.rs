//! Communicators that are made from others.

use crate::comm::{UnisonoComm, comm_ref, handle, store};
use crate::error::{argument, guard};
use std::ptr::null_mut;

/// Groups the ranks that give the same color, by key and then by rank. Color −1 is none.
///
/// # Safety
/// `comm` is null or a handle; `group` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_split(
    comm: *const UnisonoComm,
    color: i64,
    key: i32,
    group: *mut *mut UnisonoComm,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { store(group, null_mut()) }?;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let color = match (color, u32::try_from(color)) {
            (-1, _) => None,
            (_, Ok(color)) => Some(color),
            _ => return argument(format!("the color is {color}, and colors are -1 to {}", u32::MAX)),
        };
        // SAFETY: by the contract.
        unsafe { store(group, comm.split(color, key)?.map_or(null_mut(), handle)) }
    })
}

/// Makes a communicator of the ranks that are still there.
///
/// # Safety
/// `comm` is null or a handle; `survivors` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_shrink(
    comm: *const UnisonoComm,
    survivors: *mut *mut UnisonoComm,
) -> u32 {
    // SAFETY: by the contract.
    guard(|| unsafe {
        store(survivors, null_mut()).and_then(|()| store(survivors, handle(comm_ref(comm)?.shrink()?)))
    })
}
