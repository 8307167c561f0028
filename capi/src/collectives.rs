//! The collectives of the C interface.

use crate::buffers::{CheckedBuffers, RawBuffers};
use crate::comm::{UnisonoComm, comm_ref};
use crate::error::{Failure, argument, guard};
use std::ffi::c_void;
use std::time::Duration;
use unisono_core::schedule::Collective;
use unisono_core::{Communicator, DType, Operation, ReduceKind, ReduceOp};

/// The arguments of a collective.
struct Arguments {
    comm: *const UnisonoComm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: u32,
    op: Option<u32>,
    root: usize,
}

/// Runs one collective.
///
/// # Safety
/// `comm` is null or a handle. Buffers are as `CheckedBuffers::into_slices` needs them, with the
/// shares of the collective of `count` elements each.
unsafe fn run(collective: Collective, arguments: Arguments) -> u32 {
    guard(|| {
        let Arguments { comm, input, output, count, dtype, op, root } = arguments;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let mut operation = Operation::new(collective, dtype_of(dtype)?, count).with_root(root);
        operation.reduction = op.map(reduce_op).transpose()?;
        // SAFETY: by the contract.
        unsafe { run_operation(comm, &operation, input, output) }
    })
}

/// Runs an operation in the memory of the caller.
///
/// # Safety
/// As [`CheckedBuffers::into_slices`], with the shares of the operation.
pub(crate) unsafe fn run_operation(
    comm: &Communicator,
    operation: &Operation,
    input: *const c_void,
    output: *mut c_void,
) -> Result<(), Failure> {
    let buffers = checked_buffers(comm, operation, input, output)?;
    // SAFETY: by the contract.
    Ok(comm.run_operation(operation, unsafe { buffers.into_slices() })?)
}

/// Returns the memory of an operation, with the lengths of its shares.
pub(crate) fn checked_buffers(
    comm: &Communicator,
    operation: &Operation,
    input: *const c_void,
    output: *mut c_void,
) -> Result<CheckedBuffers, Failure> {
    let Operation { collective, dtype, root, count, .. } = *operation;
    if root >= comm.size() {
        return argument(format!("the root is rank {root} of {}", comm.size()));
    }
    let (inputs, outputs) = collective.shares(comm.size(), root, comm.rank());
    let bytes = |shares: usize| count.checked_mul(dtype.size())?.checked_mul(shares);
    let (Some(input_bytes), Some(output_bytes), Some(own_offset)) =
        (bytes(inputs), bytes(outputs), bytes(comm.rank()))
    else {
        return argument(format!("{count} elements of {dtype} are more than memory can hold"));
    };
    RawBuffers { input: input.cast(), input_bytes, output: output.cast(), output_bytes, own_offset }.checked()
}

pub(crate) fn dtype_of(code: u32) -> Result<DType, Failure> {
    match u8::try_from(code).ok().and_then(DType::from_code) {
        Some(dtype) => Ok(dtype),
        None => argument(format!("{code} is no element type")),
    }
}

pub(crate) fn reduce_op(code: u32) -> Result<ReduceOp, Failure> {
    let kind = u8::try_from(code).ok().and_then(ReduceKind::from_code);
    kind.and_then(ReduceOp::of_kind).map_or_else(|| argument(format!("{code} is no reduction")), Ok)
}

/// Defines functions of the interface, each with its collective and its last arguments.
macro_rules! collectives {
    ($($function:ident = $collective:ident ($($name:ident: $type:ty),*) { op: $op:expr, root: $root:expr };)*) => {$(
        /// Runs the collective of the same name; see `unisono.h`.
        ///
        /// # Safety
        /// `comm` is null or a handle. The buffers have the lengths that `unisono.h` says. Nobody
        /// else accesses them during the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(
            comm: *const UnisonoComm,
            input: *const c_void,
            output: *mut c_void,
            count: usize,
            dtype: u32,
            $($name: $type),*
        ) -> u32 {
            let arguments = Arguments { comm, input, output, count, dtype, op: $op, root: $root };
            // SAFETY: by the contract.
            unsafe { run(Collective::$collective, arguments) }
        }
    )*};
}

collectives! {
    unisono_all_reduce = AllReduce(op: u32) { op: Some(op), root: 0 };
    unisono_all_gather = AllGather() { op: None, root: 0 };
    unisono_reduce_scatter = ReduceScatter(op: u32) { op: Some(op), root: 0 };
    unisono_broadcast = Broadcast(root: usize) { op: None, root: root };
    unisono_reduce = Reduce(op: u32, root: usize) { op: Some(op), root: root };
    unisono_gather = Gather(root: usize) { op: None, root: root };
    unisono_scatter = Scatter(root: usize) { op: None, root: root };
    unisono_all_to_all = AllToAll() { op: None, root: 0 };
    unisono_scan = Scan(op: u32) { op: Some(op), root: 0 };
    unisono_exscan = ExScan(op: u32) { op: Some(op), root: 0 };
}

/// Waits until all ranks have called it.
///
/// # Safety
/// `comm` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_barrier(comm: *const UnisonoComm) -> u32 {
    // SAFETY: by the contract.
    guard(|| Ok(unsafe { comm_ref(comm) }?.barrier()?))
}

/// Waits until all ranks have called it, or fails after `timeout_ms` milliseconds.
///
/// # Safety
/// `comm` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_barrier_timeout(comm: *const UnisonoComm, timeout_ms: u64) -> u32 {
    // SAFETY: by the contract.
    guard(|| Ok(unsafe { comm_ref(comm) }?.barrier_timeout(Duration::from_millis(timeout_ms))?))
}
