//! Sends and receives of elements, in order between two ranks.

use crate::buffers::check_memory;
use crate::collectives::dtype_of;
use crate::comm::{UnisonoComm, comm_ref};
use crate::error::{Failure, argument, guard};
use std::ffi::c_void;
use unisono_core::foreign::{slice, slice_mut, written_is_shared};
use unisono_core::{Communicator, DType};

/// A send or a receive, as `unisono_group_entry` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UnisonoGroupEntry {
    direction: u32,
    dtype: u32,
    buffer: *mut c_void,
    count: usize,
    peer: usize,
}

/// An entry with memory and a type that exist.
struct CheckedEntry {
    is_send: bool,
    dtype: DType,
    buffer: *mut u8,
    bytes: usize,
    peer: usize,
}

impl UnisonoGroupEntry {
    fn checked(self) -> Result<CheckedEntry, Failure> {
        let Self { direction, dtype, buffer, count, peer } = self;
        let is_send = match direction {
            SEND => true,
            RECV => false,
            _ => return argument(format!("{direction} is no direction of an entry")),
        };
        let dtype = dtype_of(dtype)?;
        let Some(bytes) = count.checked_mul(dtype.size()) else {
            return argument(format!("{count} elements of {dtype} are more than memory can hold"));
        };
        check_memory(buffer.cast(), bytes)?;
        Ok(CheckedEntry { is_send, dtype, buffer: buffer.cast(), bytes, peer })
    }
}

/// Runs entries concurrently.
///
/// # Safety
/// The buffers are valid for reads of their elements, those of receives for writes, too. Nobody
/// else accesses them during the call.
unsafe fn run(comm: &Communicator, entries: &[CheckedEntry]) -> Result<(), Failure> {
    let places = |sends: bool| {
        // One buffer overlaps no other: a lone send allocates nothing here.
        let entries = if entries.len() > 1 { entries } else { &[] };
        let chosen = entries.iter().filter(move |entry| entry.is_send == sends);
        chosen.map(|entry| (entry.buffer.addr(), entry.bytes)).collect::<Vec<_>>()
    };
    if written_is_shared(&places(true), &places(false)) {
        return argument("the buffer of a receive overlaps another buffer");
    }
    Ok(comm.group(|group| {
        for &CheckedEntry { is_send, dtype, buffer, bytes, peer } in entries {
            // SAFETY: by the contract. No other slice has a byte of a receive.
            unsafe {
                match is_send {
                    true => group.send_bytes(dtype, slice(buffer, bytes), peer),
                    false => group.recv_bytes(dtype, slice_mut(buffer, bytes), peer),
                };
            }
        }
    })?)
}

/// Sends `count` elements to rank `to`, which receives as many with `unisono_recv`.
///
/// # Safety
/// `comm` is null or a handle. `input` is valid for reads of the elements, and nobody writes them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_send(
    comm: *const UnisonoComm,
    input: *const c_void,
    count: usize,
    dtype: u32,
    to: usize,
) -> u32 {
    let send = UnisonoGroupEntry { direction: SEND, dtype, buffer: input.cast_mut(), count, peer: to };
    // SAFETY: by the contract.
    guard(|| unsafe { run(comm_ref(comm)?, &[send.checked()?]) })
}

/// Receives `count` elements from rank `from`, which sends as many with `unisono_send`.
///
/// # Safety
/// `comm` is null or a handle. `output` is valid for writes of the elements, and nobody else
/// accesses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_recv(
    comm: *const UnisonoComm,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    from: usize,
) -> u32 {
    let recv = UnisonoGroupEntry { direction: RECV, dtype, buffer: output, count, peer: from };
    // SAFETY: by the contract.
    guard(|| unsafe { run(comm_ref(comm)?, &[recv.checked()?]) })
}

/// Sends to rank `to` and receives from rank `from`, concurrently.
///
/// # Safety
/// As [`unisono_send`] and [`unisono_recv`].
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other arguments that the compiler checks")]
pub unsafe extern "C" fn unisono_send_recv(
    comm: *const UnisonoComm,
    input: *const c_void,
    input_count: usize,
    to: usize,
    output: *mut c_void,
    output_count: usize,
    from: usize,
    dtype: u32,
) -> u32 {
    let (direction, buffer) = (SEND, input.cast_mut());
    let send = UnisonoGroupEntry { direction, dtype, buffer, count: input_count, peer: to };
    let recv = UnisonoGroupEntry { direction: RECV, dtype, buffer: output, count: output_count, peer: from };
    // SAFETY: by the contract.
    guard(|| unsafe { run(comm_ref(comm)?, &[send.checked()?, recv.checked()?]) })
}

/// Runs `count` sends and receives concurrently.
///
/// # Safety
/// `comm` is null or a handle; `entries` is null or valid for reads of `count` entries. Their
/// buffers are as [`unisono_send`] and [`unisono_recv`] need them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_group(
    comm: *const UnisonoComm,
    entries: *const UnisonoGroupEntry,
    count: usize,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let Some(bytes) = count.checked_mul(size_of::<UnisonoGroupEntry>()) else {
            return argument(format!("{count} entries are more than memory can hold"));
        };
        check_memory(entries.cast(), bytes)?;
        // SAFETY: by the contract. An entry need not be aligned.
        let entry = |place| unsafe { entries.add(place).read_unaligned() };
        let checked: Result<Vec<_>, _> = (0..count).map(|place| entry(place).checked()).collect();
        // SAFETY: by the contract.
        unsafe { run(comm, &checked?) }
    })
}

/// `UNISONO_SEND` and `UNISONO_RECV` of the header.
const SEND: u32 = 0;
const RECV: u32 = 1;
