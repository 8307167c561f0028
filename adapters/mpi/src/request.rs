//! Requests: sends and receives that have begun, and their completion.

use crate::abi::{ANY_SOURCE, ANY_TAG, Handle, PROC_NULL, REQUEST_NULL, Status, class};
use crate::comm::Comm;
use crate::error::{Failure, Outcome, fail, guard, print};
use crate::handles::Handles;
use crate::world::store;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use unisono::foreign::RawMemory;
use unisono::{ErrorKind, MessageInfo, Work};

/// A send or a receive that has begun.
pub(crate) struct Request {
    state: State,
    /// The communicator lives until its requests are complete.
    _comm: Arc<Comm>,
}

enum State {
    Sending(Work<RawMemory>),
    Receiving(Work<(RawMemory, MessageInfo)>),
    Complete(Outcome<Status>),
    /// The result was handed out.
    Ended,
}

static REQUESTS: Handles<Arc<Mutex<Request>>> = Handles::new(1);

impl Request {
    /// Begins to send to a rank.
    pub(crate) fn send(comm: &Arc<Comm>, memory: RawMemory, receiver: usize, tag: u64) -> Self {
        Self {
            state: State::Sending(comm.communicator.isend(memory, receiver, tag)),
            _comm: Arc::clone(comm),
        }
    }

    /// Begins to receive from a rank, or from any.
    pub(crate) fn receive(
        comm: &Arc<Comm>,
        memory: RawMemory,
        sender: Option<usize>,
        tag: Option<u64>,
    ) -> Self {
        Self {
            state: State::Receiving(comm.communicator.irecv(memory, sender, tag)),
            _comm: Arc::clone(comm),
        }
    }

    /// Returns the request of a message to or from no process.
    pub(crate) fn of_nobody(comm: &Arc<Comm>) -> Self {
        let status = Status::new(PROC_NULL, ANY_TAG, 0);
        Self { state: State::Complete(Ok(status)), _comm: Arc::clone(comm) }
    }

    /// Gives the request a handle.
    pub(crate) fn into_handle(self) -> Handle {
        REQUESTS.add(Arc::new(Mutex::new(self)))
    }

    /// Waits until the message is done.
    pub(crate) fn wait(&mut self) -> Outcome<Status> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Sending(work) => sent(work.wait()),
            State::Receiving(work) => received(work.wait()),
            State::Complete(outcome) => outcome,
            State::Ended => fail(class::REQUEST, "the request is waited for twice"),
        }
    }

    /// Returns whether [`Request::wait`] returns at once. Moves messages if it does not.
    fn is_complete(&mut self) -> bool {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Sending(work) => match work.wait_timeout(LOOK) {
                Ok(result) => State::Complete(sent(result)),
                Err(work) => State::Sending(work),
            },
            State::Receiving(work) => match work.wait_timeout(LOOK) {
                Ok(result) => State::Complete(received(result)),
                Err(work) => State::Receiving(work),
            },
            ended => ended,
        };
        !matches!(self.state, State::Sending(_) | State::Receiving(_))
    }
}

impl Request {
    /// Returns the failure of a message that has ended and that nobody has waited for.
    fn untold_failure(&mut self) -> Outcome {
        match (self.is_complete(), &self.state) {
            (true, State::Complete(Err(failure))) => Err(failure.clone()),
            _ => Ok(()),
        }
    }
}

/// Returns the status of a send, which says nothing.
fn sent(result: unisono::Result<RawMemory>) -> Outcome<Status> {
    result.map(|_| Status::empty()).map_err(failure)
}

fn received(result: unisono::Result<(RawMemory, MessageInfo)>) -> Outcome<Status> {
    result.map(|(_, info)| Status::of(&info)).map_err(failure)
}

/// Returns the failure of a message.
fn failure(error: unisono::Error) -> Failure {
    let too_long = matches!(error.kind(), ErrorKind::CountMismatch { .. });
    let failure = Failure::from(error);
    if too_long { Failure { class: class::TRUNCATE, ..failure } } else { failure }
}

impl Status {
    /// Returns the status of a request that received nothing.
    fn empty() -> Self {
        Self::new(ANY_SOURCE, ANY_TAG, 0)
    }

    /// Returns the status of a message. Its tag came from an `int`.
    pub(crate) fn of(message: &MessageInfo) -> Self {
        Self::new(message.source as c_int, message.tag as c_int, message.bytes)
    }
}

fn find(handle: Handle) -> Outcome<Arc<Mutex<Request>>> {
    REQUESTS.get(handle).map_or_else(|| fail(class::REQUEST, format!("{handle} is no request")), Ok)
}

/// Applies `use_it` to a request, which no other thread uses meanwhile.
fn with_request<R>(handle: Handle, use_it: impl FnOnce(&mut Request) -> R) -> Outcome<R> {
    let request = find(handle)?;
    let mut request = request.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(use_it(&mut request))
}

/// Waits for the request at a place, sets it to null, and stores what was received.
///
/// # Safety
/// `request` is null or valid for reads and writes; `status` is null or valid for writes.
unsafe fn wait_at(request: *mut Handle, status: *mut Status) -> Outcome {
    // SAFETY: by the contract.
    let Some(request) = (unsafe { request.as_mut() }) else {
        return fail(class::REQUEST, "the place of the request is NULL");
    };
    let outcome = match *request {
        REQUEST_NULL => Ok(Status::empty()),
        handle => with_request(handle, Request::wait).flatten(),
    };
    drop(REQUESTS.remove(std::mem::replace(request, REQUEST_NULL)));
    // SAFETY: by the contract.
    unsafe { store_status(status, outcome) }
}

/// Stores the status of a completion, if the caller wants it.
///
/// # Safety
/// `place` is null or valid for writes.
pub(crate) unsafe fn store_status(place: *mut Status, outcome: Outcome<Status>) -> Outcome {
    let status = outcome?;
    if !place.is_null() {
        // SAFETY: by the contract.
        unsafe { place.write(status) };
    }
    Ok(())
}

/// Returns whether the request at a place is complete. The null request is.
///
/// # Safety
/// `request` is null or valid for reads.
unsafe fn is_complete_at(request: *const Handle) -> Outcome<bool> {
    // SAFETY: by the contract.
    match unsafe { request.as_ref() } {
        None => fail(class::REQUEST, "the place of the request is NULL"),
        Some(&REQUEST_NULL) => Ok(true),
        Some(&handle) => with_request(handle, Request::is_complete),
    }
}

/// # Safety
/// `request` is null or valid for reads and writes; `status` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Wait(request: *mut Handle, status: *mut Status) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Wait", || unsafe { wait_at(request, status) })
}

/// Waits for all requests, also after one has failed. The first failure is the result.
///
/// # Safety
/// `requests`, and `statuses` if it is not null, have `count` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Waitall(count: c_int, requests: *mut Handle, statuses: *mut Status) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Waitall", || unsafe { wait_all(length(count, requests)?, requests, statuses) })
}

/// # Safety
/// As [`MPIABI_Waitall`].
unsafe fn wait_all(count: usize, requests: *mut Handle, statuses: *mut Status) -> Outcome {
    let mut outcome = Ok(());
    for index in 0..count {
        let status = if statuses.is_null() { statuses } else { statuses.wrapping_add(index) };
        // SAFETY: by the contract, the index is below the count.
        let ended = unsafe { wait_at(requests.wrapping_add(index), status) };
        outcome = outcome.and(ended);
    }
    outcome
}

/// Ends the request if it is complete, and stores whether it was.
///
/// # Safety
/// As [`MPIABI_Wait`]; `flag` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Test(request: *mut Handle, flag: *mut c_int, status: *mut Status) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Test", || unsafe {
        let complete = is_complete_at(request)?;
        store(flag, complete.into())?;
        if complete { wait_at(request, status) } else { Ok(()) }
    })
}

/// Ends the requests if all are complete, and stores whether they were. Otherwise none ends.
///
/// # Safety
/// As [`MPIABI_Waitall`]; `flag` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Testall(
    count: c_int,
    requests: *mut Handle,
    flag: *mut c_int,
    statuses: *mut Status,
) -> c_int {
    guard("MPI_Testall", || {
        let count = length(count, requests)?;
        let mut complete = true;
        for index in 0..count {
            // SAFETY: by the contract, the index is below the count.
            complete &= unsafe { is_complete_at(requests.wrapping_add(index)) }?;
        }
        // SAFETY: by the contract.
        unsafe {
            store(flag, complete.into())?;
            if complete { wait_all(count, requests, statuses) } else { Ok(()) }
        }
    })
}

/// Forgets a request, whose message goes on, and sets the handle to null. Returns the failure of a
/// message that has ended already, because nobody can ask for it later.
///
/// # Safety
/// `request` is null or valid for reads and writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Request_free(request: *mut Handle) -> c_int {
    guard("MPI_Request_free", || {
        // SAFETY: by the contract.
        let Some(request) = (unsafe { request.as_mut() }) else {
            return fail(class::REQUEST, "the place of the request is NULL");
        };
        let ended = with_request(*request, Request::untold_failure)?;
        drop(REQUESTS.remove(std::mem::replace(request, REQUEST_NULL)));
        ended
    })
}

/// Forgets all requests, when MPI ends. Prints the failures that nobody was told.
pub(crate) fn forget_all() {
    for request in REQUESTS.take_all() {
        let mut request = request.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(failure) = request.untold_failure() {
            print(&format!(
                "a message failed, and nobody waited for it before MPI_Finalize: {}",
                failure.text
            ));
        }
    }
}

/// Returns the length of an array of requests.
fn length(count: c_int, requests: *const Handle) -> Outcome<usize> {
    match usize::try_from(count) {
        Err(_) => fail(class::COUNT, format!("the count is {count}")),
        Ok(1..) if requests.is_null() => fail(class::REQUEST, "the place of the requests is NULL"),
        Ok(count) => Ok(count),
    }
}

/// Time for which a test of a request moves messages.
const LOOK: Duration = Duration::from_micros(1);
