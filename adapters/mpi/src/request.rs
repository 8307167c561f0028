//! Requests: sends and receives that have begun, and their completion.

use crate::abi::{Handle, REQUEST_NULL, Status, class};
use crate::buffers::{slice, slice_mut};
use crate::comm::Comm;
use crate::error::{Failure, Outcome, fail, guard};
use crate::handles::Handles;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, MutexGuard, PoisonError};
use unisono::{Communicator, Group};

/// A send or a receive that a request stands for.
pub(crate) struct Message {
    pub(crate) is_send: bool,
    pub(crate) memory: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) peer: usize,
}

// SAFETY: the memory belongs to the message until its request is complete, on whatever thread.
unsafe impl Send for Message {}

/// The messages of one communicator that have begun, in the order in which they did.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Vec<(Handle, Message)>,
    finished: HashMap<Handle, Outcome<(usize, usize)>>,
}

static REQUESTS: Handles<Arc<Comm>> = Handles::new(1);

fn lock(comm: &Comm) -> MutexGuard<'_, Queue> {
    comm.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a message and returns its request. It moves when one of the communicator's requests is
/// waited for, together with all others that have begun.
pub(crate) fn begin(comm: &Arc<Comm>, message: Message) -> Handle {
    let mut queue = lock(comm);
    let request = REQUESTS.add(Arc::clone(comm));
    queue.waiting.push((request, message));
    request
}

/// Waits for a request, which ends it. Returns the peer and the bytes.
pub(crate) fn finish(request: Handle) -> Outcome<(usize, usize)> {
    let Some(comm) = REQUESTS.remove(request) else {
        return fail(class::REQUEST, format!("{request} is no request"));
    };
    let mut queue = lock(&comm);
    if queue.waiting.iter().any(|(waiting, _)| *waiting == request) {
        let batch = std::mem::take(&mut queue.waiting);
        // SAFETY: the callers of `begin` gave the memory away until the end of the requests.
        let moved = unsafe { exchange(&comm.communicator, &batch) };
        for (request, message) in batch {
            queue.finished.insert(request, moved.clone().map(|()| (message.peer, message.bytes)));
        }
    }
    let result = queue.finished.remove(&request);
    result.unwrap_or_else(|| fail(class::REQUEST, format!("request {request} is waited for twice")))
}

/// Runs messages as one group, so that no order among them can deadlock.
///
/// # Safety
/// The memory of every message is valid, and nobody else accesses it during the call.
unsafe fn exchange(communicator: &Communicator, messages: &[(Handle, Message)]) -> Outcome {
    let add = |group: &mut Group<'_>| {
        for (_, message) in messages {
            // SAFETY: by the contract.
            unsafe {
                match message.is_send {
                    true => group.send(slice(message.memory, message.bytes), message.peer),
                    false => group.recv(slice_mut(message.memory, message.bytes), message.peer),
                };
            }
        }
    };
    communicator.group(add).map_err(Failure::from)
}

/// Waits for the request at a place, sets it to null, and stores what was received.
///
/// # Safety
/// `request` is null or valid for reads and writes; `status` is null or valid for writes.
pub(crate) unsafe fn finish_at(request: *mut Handle, status: *mut Status) -> Outcome {
    // SAFETY: by the contract.
    let Some(request) = (unsafe { request.as_mut() }) else {
        return fail(class::REQUEST, "the place of the request is NULL");
    };
    let (source, bytes) = match std::mem::replace(request, REQUEST_NULL) {
        REQUEST_NULL => (crate::abi::ANY_SOURCE, 0),
        handle => finish(handle).map(|(peer, bytes)| (peer as c_int, bytes))?,
    };
    if !status.is_null() {
        // SAFETY: by the contract.
        unsafe { status.write(Status::new(source, 0, bytes)) };
    }
    Ok(())
}

/// # Safety
/// As [`finish_at`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Wait(request: *mut Handle, status: *mut Status) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Wait", || unsafe { finish_at(request, status) })
}

/// Waits for all requests, also after one has failed. The first failure is the result.
///
/// # Safety
/// `requests`, and `statuses` if it is not null, have `count` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Waitall(count: c_int, requests: *mut Handle, statuses: *mut Status) -> c_int {
    guard("MPI_Waitall", || {
        let mut outcome = Ok(());
        for index in 0..usize::try_from(count).unwrap_or(0) {
            let status = if statuses.is_null() { statuses } else { statuses.wrapping_add(index) };
            // SAFETY: by the contract, the index is below the count.
            let one = unsafe { finish_at(requests.wrapping_add(index), status) };
            outcome = outcome.and(one);
        }
        outcome
    })
}
