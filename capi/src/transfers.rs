//! Sends and receives of elements, in order between two ranks.

use crate::buffers::check_memory;
use crate::collectives::dtype_of;
use crate::comm::{UnisonoComm, comm_ref};
use crate::error::{Failure, argument, guard};
use std::ffi::c_void;
use unisono_core::foreign::{slice, slice_mut, written_is_shared};
use unisono_core::{Communicator, DType};

/// A send or a receive, as `unisono_transfer` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UnisonoTransfer {
    direction: u32,
    dtype: u32,
    buffer: *mut c_void,
    count: usize,
    peer: usize,
}

/// A transfer whose memory and type can be.
struct CheckedTransfer {
    is_send: bool,
    dtype: DType,
    buffer: *mut u8,
    bytes: usize,
    peer: usize,
}

impl UnisonoTransfer {
    fn checked(self) -> Result<CheckedTransfer, Failure> {
        let Self { direction, dtype, buffer, count, peer } = self;
        let is_send = match direction {
            SEND => true,
            RECV => false,
            _ => return argument(format!("{direction} is no direction of a transfer")),
        };
        let dtype = dtype_of(dtype)?;
        let Some(bytes) = count.checked_mul(dtype.size()) else {
            return argument(format!("{count} elements of {dtype} are more than memory can hold"));
        };
        check_memory(buffer.cast(), bytes)?;
        Ok(CheckedTransfer { is_send, dtype, buffer: buffer.cast(), bytes, peer })
    }
}

/// Runs transfers concurrently.
///
/// # Safety
/// The buffers are valid for reads of their elements, those of receives for writes, too. Nobody
/// else accesses them during the call.
unsafe fn run(comm: &Communicator, transfers: &[CheckedTransfer]) -> Result<(), Failure> {
    let places = |sends: bool| {
        let chosen = transfers.iter().filter(move |transfer| transfer.is_send == sends);
        chosen.map(|transfer| (transfer.buffer.addr(), transfer.bytes)).collect::<Vec<_>>()
    };
    if written_is_shared(&places(true), &places(false)) {
        return argument("the buffer of a receive overlaps another buffer");
    }
    Ok(comm.group(|group| {
        for &CheckedTransfer { is_send, dtype, buffer, bytes, peer } in transfers {
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
    let send = UnisonoTransfer { direction: SEND, dtype, buffer: input.cast_mut(), count, peer: to };
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
    let recv = UnisonoTransfer { direction: RECV, dtype, buffer: output, count, peer: from };
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
    let send = UnisonoTransfer { direction, dtype, buffer, count: input_count, peer: to };
    let recv = UnisonoTransfer { direction: RECV, dtype, buffer: output, count: output_count, peer: from };
    // SAFETY: by the contract.
    guard(|| unsafe { run(comm_ref(comm)?, &[send.checked()?, recv.checked()?]) })
}

/// Runs `count` sends and receives concurrently.
///
/// # Safety
/// `comm` is null or a handle; `transfers` is null or valid for reads of `count` transfers. Their
/// buffers are as [`unisono_send`] and [`unisono_recv`] need them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_group(
    comm: *const UnisonoComm,
    transfers: *const UnisonoTransfer,
    count: usize,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let Some(bytes) = count.checked_mul(size_of::<UnisonoTransfer>()) else {
            return argument(format!("{count} transfers are more than memory can hold"));
        };
        check_memory(transfers.cast(), bytes)?;
        // SAFETY: by the contract. A transfer need not be aligned.
        let transfer = |place| unsafe { transfers.add(place).read_unaligned() };
        let checked: Result<Vec<_>, _> = (0..count).map(|place| transfer(place).checked()).collect();
        // SAFETY: by the contract.
        unsafe { run(comm, &checked?) }
    })
}

/// `UNISONO_SEND` and `UNISONO_RECV` of the header.
const SEND: u32 = 0;
const RECV: u32 = 1;
