//! Sends and receives.

use crate::abi::{ANY_SOURCE, ANY_TAG, Handle, PROC_NULL, REQUEST_NULL, Status, class};
use crate::comm::{self, Comm};
use crate::datatype::{self, bytes_of};
use crate::error::{Outcome, fail, guard};
use crate::request::{Message, begin, finish_at};
use crate::world::store;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The arguments of a send or a receive.
struct Arguments {
    memory: *mut c_void,
    count: c_int,
    datatype: Handle,
    peer: c_int,
    tag: c_int,
}

/// Returns the message of valid arguments, or none if its peer is no process.
fn message(comm: &Comm, is_send: bool, arguments: Arguments) -> Outcome<Option<Message>> {
    let Arguments { memory, count, datatype, peer, tag } = arguments;
    let bytes = bytes_of(datatype, count)?;
    if peer == PROC_NULL {
        return Ok(None);
    }
    if peer == ANY_SOURCE || tag == ANY_TAG {
        return fail(class::UNSUPPORTED_OPERATION, "MPI_ANY_SOURCE and MPI_ANY_TAG are not implemented");
    }
    if tag != 0 {
        let text = format!("tag {tag}: messages are matched by their order; use tag 0 for all");
        return fail(class::TAG, text);
    }
    if memory.is_null() && bytes > 0 {
        return fail(class::BUFFER, "the buffer is NULL");
    }
    let peer = comm.rank_of("the peer", peer)?;
    Ok(Some(Message { is_send, memory: memory.cast(), bytes, peer }))
}

/// Begins a message. One without a process is complete at once.
fn start(comm: &Arc<Comm>, is_send: bool, arguments: Arguments) -> Outcome<Handle> {
    let message = message(comm, is_send, arguments)?;
    Ok(message.map_or(REQUEST_NULL, |message| begin(comm, message)))
}

/// # Safety
/// The buffer stays valid until the request is complete, and nobody changes it meanwhile. `request`
/// is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Isend(
    memory: *const c_void,
    count: c_int,
    datatype: Handle,
    peer: c_int,
    tag: c_int,
    comm: Handle,
    request: *mut Handle,
) -> c_int {
    let arguments = Arguments { memory: memory.cast_mut(), count, datatype, peer, tag };
    // SAFETY: by the contract.
    guard("MPI_Isend", || unsafe {
        store(request, REQUEST_NULL)?;
        store(request, start(&comm::find(comm)?, true, arguments)?)
    })
}

/// # Safety
/// The buffer stays valid until the request is complete, and nobody else uses it meanwhile.
/// `request` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Irecv(
    memory: *mut c_void,
    count: c_int,
    datatype: Handle,
    peer: c_int,
    tag: c_int,
    comm: Handle,
    request: *mut Handle,
) -> c_int {
    let arguments = Arguments { memory, count, datatype, peer, tag };
    // SAFETY: by the contract.
    guard("MPI_Irecv", || unsafe {
        store(request, REQUEST_NULL)?;
        store(request, start(&comm::find(comm)?, false, arguments)?)
    })
}

/// # Safety
/// The buffer is valid for reads of `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Send(
    memory: *const c_void,
    count: c_int,
    datatype: Handle,
    peer: c_int,
    tag: c_int,
    comm: Handle,
) -> c_int {
    let arguments = Arguments { memory: memory.cast_mut(), count, datatype, peer, tag };
    guard("MPI_Send", || {
        let mut request = start(&comm::find(comm)?, true, arguments)?;
        // SAFETY: the request is this function's own.
        unsafe { finish_at(&mut request, std::ptr::null_mut()) }
    })
}

/// # Safety
/// The buffer is valid for writes of `count` elements; `status` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Recv(
    memory: *mut c_void,
    count: c_int,
    datatype: Handle,
    peer: c_int,
    tag: c_int,
    comm: Handle,
    status: *mut Status,
) -> c_int {
    let arguments = Arguments { memory, count, datatype, peer, tag };
    guard("MPI_Recv", || {
        let mut request = start(&comm::find(comm)?, false, arguments)?;
        // SAFETY: by the contract; the request is this function's own.
        unsafe { finish_at(&mut request, status) }
    })
}

/// Sends and receives concurrently.
///
/// # Safety
/// The buffers are valid and disjoint; `status` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Sendrecv(
    send: *const c_void,
    send_count: c_int,
    send_type: Handle,
    to: c_int,
    send_tag: c_int,
    receive: *mut c_void,
    receive_count: c_int,
    receive_type: Handle,
    from: c_int,
    receive_tag: c_int,
    comm: Handle,
    status: *mut Status,
) -> c_int {
    let sent = Arguments {
        memory: send.cast_mut(),
        count: send_count,
        datatype: send_type,
        peer: to,
        tag: send_tag,
    };
    let received = Arguments {
        memory: receive,
        count: receive_count,
        datatype: receive_type,
        peer: from,
        tag: receive_tag,
    };
    guard("MPI_Sendrecv", || {
        let comm = comm::find(comm)?;
        // Nothing begins unless all arguments are valid.
        let messages = [message(&comm, false, received)?, message(&comm, true, sent)?];
        let [mut receiving, mut sending] =
            messages.map(|message| message.map_or(REQUEST_NULL, |message| begin(&comm, message)));
        // SAFETY: by the contract; the requests are this function's own.
        unsafe {
            let outcome = finish_at(&mut receiving, status);
            outcome.and(finish_at(&mut sending, std::ptr::null_mut()))
        }
    })
}

/// Stores the number of elements that were received.
///
/// # Safety
/// `status` is null or valid for reads, `count` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Get_count(status: *const Status, datatype: Handle, count: *mut c_int) -> c_int {
    guard("MPI_Get_count", || {
        let (_, element) = datatype::read(datatype)?;
        // SAFETY: by the contract.
        let Some(status) = (unsafe { status.as_ref() }) else {
            return fail(class::ARG, "the status is NULL");
        };
        let elements = match status.bytes % element {
            0 => (status.bytes / element) as c_int,
            _ => crate::abi::UNDEFINED,
        };
        // SAFETY: by the contract.
        unsafe { store(count, elements) }
    })
}
