//! Collectives whose shares have different lengths.
//!
//! Buffers need no alignment.

use crate::buffers::disjoint;
use crate::collectives::{dtype_of, reduce_op};
use crate::comm::{UnisonoComm, comm_ref};
use crate::error::{Failure, argument, guard};
use std::ffi::c_void;
use unisono_core::{Communicator, DType, OpBuffers, UnevenOperation};

/// Counts of elements, with the bytes of all of them.
struct Counts {
    elements: Vec<usize>,
    /// The same counts in bytes.
    bytes: Vec<usize>,
    total_bytes: usize,
}

/// Returns the counts of all ranks.
///
/// # Safety
/// `counts` is null or valid for reads of a count for each rank.
unsafe fn counts_of(comm: &Communicator, counts: *const usize, element: usize) -> Result<Counts, Failure> {
    if counts.is_null() {
        return argument("the counts are NULL");
    }
    // SAFETY: by the contract. A count need not be aligned.
    let elements: Vec<usize> =
        (0..comm.size()).map(|rank| unsafe { counts.add(rank).read_unaligned() }).collect();
    let bytes: Option<Vec<usize>> = elements.iter().map(|count| count.checked_mul(element)).collect();
    let total = bytes.as_ref().and_then(|bytes| bytes.iter().try_fold(0usize, |sum, &b| sum.checked_add(b)));
    match (bytes, total) {
        (Some(bytes), Some(total_bytes)) => Ok(Counts { elements, bytes, total_bytes }),
        _ => argument("the counts are more than memory can hold"),
    }
}

/// Returns the bytes of `count` elements.
fn bytes_of(count: usize, dtype: DType) -> Result<usize, Failure> {
    match count.checked_mul(dtype.size()) {
        Some(bytes) => Ok(bytes),
        None => argument(format!("{count} elements of {dtype} are more than memory can hold")),
    }
}

/// Concatenates inputs of different lengths, by rank, into every rank's output.
///
/// # Safety
/// `comm` is null or a handle; `counts` is null or has a count for each rank. The buffers have the
/// lengths that `unisono.h` says. Nobody else accesses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_gather_v(
    comm: *const UnisonoComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: u32,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let dtype = dtype_of(dtype)?;
        // SAFETY: by the contract.
        let counts = unsafe { counts_of(comm, counts, dtype.size()) }?;
        let share_bytes = counts.bytes[comm.rank()];
        // SAFETY: by the contract.
        let (input, output) = unsafe { disjoint((input, share_bytes), (output, counts.total_bytes)) }?;
        let operation = UnevenOperation::all_gather(dtype, &counts.elements);
        Ok(comm.run_uneven_operation(&operation, OpBuffers::Separate { input, output })?)
    })
}

/// Reduces the inputs of all ranks, and gives each rank a part of its own length.
///
/// # Safety
/// As [`unisono_all_gather_v`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_reduce_scatter_v(
    comm: *const UnisonoComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: u32,
    op: u32,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let (dtype, op) = (dtype_of(dtype)?, reduce_op(op)?);
        // SAFETY: by the contract.
        let counts = unsafe { counts_of(comm, counts, dtype.size()) }?;
        let share_bytes = counts.bytes[comm.rank()];
        // SAFETY: by the contract.
        let (input, output) = unsafe { disjoint((input, counts.total_bytes), (output, share_bytes)) }?;
        let operation = UnevenOperation::reduce_scatter(dtype, &counts.elements, op);
        Ok(comm.run_uneven_operation(&operation, OpBuffers::Separate { input, output })?)
    })
}

/// Sends parts of different lengths to all ranks, and receives one from each.
///
/// # Safety
/// As [`unisono_all_gather_v`], for both lists of counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_all_to_all_v(
    comm: *const UnisonoComm,
    input: *const c_void,
    send_counts: *const usize,
    output: *mut c_void,
    recv_counts: *const usize,
    dtype: u32,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let element = dtype_of(dtype)?.size();
        // SAFETY: by the contract.
        let sends = unsafe { counts_of(comm, send_counts, element) }?;
        // SAFETY: by the contract.
        let receives = unsafe { counts_of(comm, recv_counts, element) }?;
        // SAFETY: by the contract.
        let (input, output) =
            unsafe { disjoint((input, sends.total_bytes), (output, receives.total_bytes)) }?;
        Ok(comm.all_to_all_v(input, &sends.bytes, output, &receives.bytes)?)
    })
}

/// Concatenates inputs of different lengths, by rank, into the root's output.
///
/// # Safety
/// As [`unisono_all_gather_v`]. Other ranks than the root need no output and no counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_gather_v(
    comm: *const UnisonoComm,
    input: *const c_void,
    count: usize,
    output: *mut c_void,
    counts: *const usize,
    dtype: u32,
    root: usize,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let dtype = dtype_of(dtype)?;
        let share_bytes = bytes_of(count, dtype)?;
        if comm.rank() != root {
            // SAFETY: by the contract.
            let (input, _) = unsafe { disjoint((input, share_bytes), (std::ptr::null_mut(), 0)) }?;
            return Ok(comm.gather_v(input, None, root)?);
        }
        // SAFETY: by the contract.
        let counts = unsafe { counts_of(comm, counts, dtype.size()) }?;
        // SAFETY: by the contract.
        let (input, output) = unsafe { disjoint((input, share_bytes), (output, counts.total_bytes)) }?;
        Ok(comm.gather_v(input, Some((output, &counts.bytes)), root)?)
    })
}

/// Copies parts of different lengths of the root's input to the ranks' outputs.
///
/// # Safety
/// As [`unisono_all_gather_v`]. Other ranks than the root need no input and no counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_scatter_v(
    comm: *const UnisonoComm,
    input: *const c_void,
    counts: *const usize,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    root: usize,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let dtype = dtype_of(dtype)?;
        let share_bytes = bytes_of(count, dtype)?;
        if comm.rank() != root {
            // SAFETY: by the contract.
            let (_, output) = unsafe { disjoint((std::ptr::null(), 0), (output, share_bytes)) }?;
            return Ok(comm.scatter_v(None, output, root)?);
        }
        // SAFETY: by the contract.
        let counts = unsafe { counts_of(comm, counts, dtype.size()) }?;
        // SAFETY: by the contract.
        let (input, output) = unsafe { disjoint((input, counts.total_bytes), (output, share_bytes)) }?;
        Ok(comm.scatter_v(Some((input, &counts.bytes)), output, root)?)
    })
}
