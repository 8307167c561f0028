//! Collectives that are described by values: run at once, or started.

use crate::collectives::{checked_buffers, dtype_of, reduce_op, run_operation};
use crate::comm::{UnisonoComm, comm_ref};
use crate::error::{Failure, argument, guard};
use crate::requests::{UnisonoRequest, start};
use std::ffi::c_void;
use unisono_core::schedule::Collective;
use unisono_core::{Communicator, Operation};

/// A collective described by values, as `unisono_operation` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UnisonoOperation {
    collective: u32,
    dtype: u32,
    op: u32,
    root: usize,
    count: usize,
}

impl UnisonoOperation {
    fn to_operation(self) -> Result<Operation, Failure> {
        let Some(&collective) = Collective::ALL.get(self.collective as usize) else {
            return argument(format!("{} is no collective", self.collective));
        };
        let mut operation = Operation::new(collective, dtype_of(self.dtype)?, self.count);
        if collective.has_root() {
            operation.root = self.root;
        }
        if collective.reduces() {
            operation.reduction = Some(reduce_op(self.op)?);
        }
        Ok(operation)
    }
}

/// # Safety
/// `operation` is null or valid for reads.
unsafe fn operation_of(operation: *const UnisonoOperation) -> Result<Operation, Failure> {
    // SAFETY: by the contract; null is handled.
    match unsafe { operation.as_ref() } {
        Some(operation) => operation.to_operation(),
        None => argument("the operation is NULL"),
    }
}

/// Runs the collective that `operation` describes.
///
/// # Safety
/// `comm` is null or a handle; `operation` is null or valid for reads. The buffers have the lengths
/// of the collective's shares. Nobody else accesses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_run_operation(
    comm: *const UnisonoComm,
    operation: *const UnisonoOperation,
    input: *const c_void,
    output: *mut c_void,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let (comm, operation) = unsafe { (comm_ref(comm)?, operation_of(operation)?) };
        // SAFETY: by the contract.
        unsafe { run_operation(comm, &operation, input, output) }
    })
}

/// Starts the collective that `operation` describes, and returns at once.
///
/// # Safety
/// As [`unisono_run_operation`], with buffers that nobody else accesses until the request is done;
/// `request` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_start_operation(
    comm: *const UnisonoComm,
    operation: *const UnisonoOperation,
    input: *const c_void,
    output: *mut c_void,
    request: *mut *mut UnisonoRequest,
) -> u32 {
    let started = |comm: &Communicator| {
        // SAFETY: by the contract.
        let operation = unsafe { operation_of(operation) }?;
        let buffers = checked_buffers(comm, &operation, input, output)?;
        Ok(comm.spawn(move |comm| {
            // SAFETY: the caller leaves the memory to the operation until it is done.
            comm.run_operation(&operation, unsafe { buffers.into_slices() }).map(|()| None)
        }))
    };
    // SAFETY: by the contract.
    guard(|| unsafe { start(comm, request, started) })
}
