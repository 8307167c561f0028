//! Communicators.

use crate::abi::{COMM_NULL, COMM_SELF, COMM_WORLD, Handle, UNDEFINED, class};
use crate::error::{Outcome, fail, guard, print};
use crate::handles::Handles;
use crate::world::{reason_of_absence, store};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use unisono::Communicator;

/// A communicator behind a handle.
pub(crate) struct Comm {
    pub(crate) communicator: Communicator,
}

impl Comm {
    pub(crate) fn new(communicator: Communicator) -> Arc<Self> {
        Arc::new(Self { communicator })
    }

    /// Returns the rank that an argument names.
    pub(crate) fn rank_of(&self, name: &str, rank: c_int) -> Outcome<usize> {
        let ranks = self.communicator.size();
        match usize::try_from(rank) {
            Ok(rank) if rank < ranks => Ok(rank),
            _ => fail(class::RANK, format!("{name} is rank {rank}, and there are {ranks} ranks")),
        }
    }
}

pub(crate) static TABLE: Handles<Arc<Comm>> = Handles::new(16);

/// The last communicator that could not be made. XLA uses the null handle that it got instead.
static LAST_REFUSAL: Mutex<Option<String>> = Mutex::new(None);

/// Returns the communicator of a handle.
pub(crate) fn find(handle: Handle) -> Outcome<Arc<Comm>> {
    if let Some(comm) = TABLE.get(handle) {
        return Ok(comm);
    }
    let refusal = LAST_REFUSAL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let text = match refusal {
        Some(refusal) if handle == COMM_NULL => format!("the communicator was not made: {refusal}"),
        _ if handle == COMM_NULL => format!("the communicator is MPI_COMM_NULL; {}", reason_of_absence()),
        _ => reason_of_absence(),
    };
    fail(class::COMM, text)
}

/// Makes a communicator and stores its handle: the null handle if there is none.
///
/// # Safety
/// `place` is null or valid for writes.
unsafe fn store_new(place: *mut Handle, make: impl FnOnce() -> Outcome<Option<Communicator>>) -> Outcome {
    // SAFETY: by the contract.
    unsafe { store(place, COMM_NULL) }?;
    match make() {
        Ok(None) => Ok(()),
        // SAFETY: by the contract.
        Ok(Some(made)) => unsafe { store(place, TABLE.add(Comm::new(made))) },
        Err(failure) => {
            print(&format!("a communicator was not made: {}", failure.text));
            *LAST_REFUSAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.text.clone());
            Err(failure)
        }
    }
}

/// # Safety
/// `rank` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Comm_rank(comm: Handle, rank: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Comm_rank", || unsafe { store(rank, find(comm)?.communicator.rank() as c_int) })
}

/// # Safety
/// `size` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Comm_size(comm: Handle, size: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Comm_size", || unsafe { store(size, find(comm)?.communicator.size() as c_int) })
}

/// Divides the ranks by color, and orders each group by key and rank. All ranks must call.
///
/// # Safety
/// `made` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Comm_split(comm: Handle, color: c_int, key: c_int, made: *mut Handle) -> c_int {
    let split = || {
        let color = match u32::try_from(color) {
            Ok(color) => Some(color),
            Err(_) if color == UNDEFINED => None,
            Err(_) => return fail(class::ARG, format!("the color is {color}; it must not be negative")),
        };
        Ok(find(comm)?.communicator.split(color, key)?)
    };
    // SAFETY: by the contract.
    guard("MPI_Comm_split", || unsafe { store_new(made, split) })
}

/// # Safety
/// `made` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Comm_dup(comm: Handle, made: *mut Handle) -> c_int {
    let duplicate = || Ok(Some(find(comm)?.communicator.duplicate()?));
    // SAFETY: by the contract.
    guard("MPI_Comm_dup", || unsafe { store_new(made, duplicate) })
}

/// Ends a communicator and sets its handle to null.
///
/// # Safety
/// `comm` is null or valid for reads and writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Comm_free(comm: *mut Handle) -> c_int {
    guard("MPI_Comm_free", || {
        // SAFETY: by the contract.
        let Some(handle) = (unsafe { comm.as_mut() }) else {
            return fail(class::ARG, "the place of the communicator is NULL");
        };
        if matches!(*handle, COMM_WORLD | COMM_SELF) {
            return fail(class::COMM, "MPI_COMM_WORLD and MPI_COMM_SELF end with MPI_Finalize");
        }
        find(*handle)?;
        drop(TABLE.remove(*handle));
        *handle = COMM_NULL;
        Ok(())
    })
}
