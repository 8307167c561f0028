//! Communicators that are made from others.

use crate::buffers::check_memory;
use crate::comm::{UnisonoComm, comm_ref, handle, id_of, store};
use crate::error::{Failure, argument, guard};
use std::ffi::c_char;
use std::ptr::null_mut;
use unisono_core::Communicator;

/// Makes a communicator of the ranks that give the same color, ordered by key and then by rank. A
/// rank that gives color −1 gets none.
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

/// Makes a communicator of the ranks that are left.
///
/// # Safety
/// `comm` is null or a handle; `survivors` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_shrink(
    comm: *const UnisonoComm,
    survivors: *mut *mut UnisonoComm,
) -> u32 {
    // SAFETY: by the contract.
    unsafe { make(comm, survivors, |comm| Ok(comm.shrink()?)) }
}

/// Makes a communicator of the ranks that are left, and replaces `value` by the smallest of their
/// values.
///
/// # Safety
/// `comm` is null or a handle; `value` is null or valid for reads and writes; `survivors` is null
/// or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_shrink_and_agree(
    comm: *const UnisonoComm,
    value: *mut u64,
    survivors: *mut *mut UnisonoComm,
) -> u32 {
    let shrink = |comm: &Communicator| {
        if value.is_null() {
            return argument("the value is NULL");
        }
        // SAFETY: by the contract.
        let (left, smallest) = comm.shrink_and_agree(unsafe { value.read() })?;
        // SAFETY: by the contract.
        unsafe { store(value, smallest) }?;
        Ok(left)
    };
    // SAFETY: by the contract.
    unsafe { make(comm, survivors, shrink) }
}

/// Makes another communicator of the same ranks. Its calls do not wait for calls on this one.
///
/// # Safety
/// `comm` is null or a handle; `duplicate` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_duplicate(
    comm: *const UnisonoComm,
    duplicate: *mut *mut UnisonoComm,
) -> u32 {
    // SAFETY: by the contract.
    unsafe { make(comm, duplicate, |comm| Ok(comm.duplicate()?)) }
}

/// Makes a communicator of `count` members, in that order. Only the members call it.
///
/// # Safety
/// `comm` is null or a handle; `members` is null or valid for reads of `count` ranks; `group` is
/// null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_create_group(
    comm: *const UnisonoComm,
    members: *const usize,
    count: usize,
    tag: u32,
    group: *mut *mut UnisonoComm,
) -> u32 {
    let create = |comm: &Communicator| {
        if count > comm.size() {
            return argument(format!("the group has {count} members, of {} ranks", comm.size()));
        }
        check_memory(members.cast(), count * size_of::<usize>())?;
        // SAFETY: by the contract. A rank need not be aligned.
        let member = |place| unsafe { members.add(place).read_unaligned() };
        let members: Vec<usize> = (0..count).map(member).collect();
        Ok(comm.create_group(&members, tag)?)
    };
    // SAFETY: by the contract.
    unsafe { make(comm, group, create) }
}

/// Makes a communicator of these ranks and of `newcomers` more, which join by the unique id.
///
/// # Safety
/// `comm` is null or a handle; `id` is null or a string; `larger` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_comm_grow(
    comm: *const UnisonoComm,
    id: *const c_char,
    newcomers: usize,
    larger: *mut *mut UnisonoComm,
) -> u32 {
    // SAFETY: by the contract.
    let grow = |comm: &Communicator| Ok(comm.grow(&unsafe { id_of(id) }?, newcomers)?);
    // SAFETY: by the contract.
    unsafe { make(comm, larger, grow) }
}

/// Stores a handle of the communicator that `make` makes of another one. Stores null if it fails.
///
/// # Safety
/// `comm` is null or a handle; `place` is null or valid for writes.
unsafe fn make(
    comm: *const UnisonoComm,
    place: *mut *mut UnisonoComm,
    make: impl FnOnce(&Communicator) -> Result<Communicator, Failure>,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract. The place holds null, too, if a panic follows.
        unsafe { store(place, null_mut()) }?;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        // SAFETY: by the contract.
        unsafe { store(place, handle(make(comm)?)) }
    })
}
