//! Sends and receives.

use crate::abi::{ANY_SOURCE, ANY_TAG, Handle, PROC_NULL, REQUEST_NULL, Status, class};
use crate::buffers::check_address;
use crate::comm::{self, Comm};
use crate::datatype::{self, bytes_of};
use crate::error::{Outcome, fail, guard};
use crate::request::{Request, store_status};
use crate::world::store;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use unisono::foreign::RawMemory;

/// The arguments of a send or a receive.
struct Arguments {
    memory: *mut c_void,
    count: c_int,
    datatype: Handle,
    peer: c_int,
    tag: c_int,
}

/// A message of valid arguments.
enum Message {
    Send {
        bytes: usize,
        to: usize,
        tag: u64,
    },
    Receive {
        bytes: usize,
        from: Option<usize>,
        tag: Option<u64>,
    },
    /// Its peer is no process.
    Nobody,
}

/// Returns the rank that a receive names, or none for any.
pub(crate) fn source_of(comm: &Comm, peer: c_int) -> Outcome<Option<usize>> {
    if peer == ANY_SOURCE { Ok(None) } else { comm.rank_of("the source", peer).map(Some) }
}

/// Returns the tag that a receive names, or none for any.
pub(crate) fn tag_of_receive(tag: c_int) -> Outcome<Option<u64>> {
    if tag == ANY_TAG { Ok(None) } else { tag_of(tag).map(Some) }
}

fn tag_of(tag: c_int) -> Outcome<u64> {
    u64::try_from(tag).or_else(|_| fail(class::TAG, format!("the tag is {tag}; it must not be negative")))
}

impl Arguments {
    fn bytes(&self) -> Outcome<usize> {
        let bytes = bytes_of(self.datatype, self.count)?;
        check_address(self.memory.cast(), bytes)?;
        Ok(bytes)
    }

    fn sent(&self, comm: &Comm) -> Outcome<Message> {
        let (bytes, tag) = (self.bytes()?, tag_of(self.tag)?);
        if self.peer == PROC_NULL {
            return Ok(Message::Nobody);
        }
        Ok(Message::Send { bytes, to: comm.rank_of("the destination", self.peer)?, tag })
    }

    fn received(&self, comm: &Comm) -> Outcome<Message> {
        let (bytes, tag) = (self.bytes()?, tag_of_receive(self.tag)?);
        if self.peer == PROC_NULL {
            return Ok(Message::Nobody);
        }
        Ok(Message::Receive { bytes, from: source_of(comm, self.peer)?, tag })
    }

    /// Begins a message of these arguments.
    ///
    /// # Safety
    /// The memory is valid until the request is complete, and nobody else uses it meanwhile.
    unsafe fn start(&self, comm: &Arc<Comm>, message: Message) -> Request {
        // SAFETY: by the contract.
        let memory = |bytes| unsafe { RawMemory::new(self.memory.cast(), bytes) };
        match message {
            Message::Send { bytes, to, tag } => Request::send(comm, memory(bytes), to, tag),
            Message::Receive { bytes, from, tag } => Request::receive(comm, memory(bytes), from, tag),
            Message::Nobody => Request::of_nobody(comm),
        }
    }
}

/// The check of a send, or of a receive.
type Check = fn(&Arguments, &Comm) -> Outcome<Message>;

/// Begins a message and stores its request.
///
/// # Safety
/// As [`Arguments::start`]. `request` is null or valid for writes.
unsafe fn begin(arguments: &Arguments, check: Check, comm: Handle, request: *mut Handle) -> Outcome {
    // SAFETY: by the contract.
    unsafe {
        store(request, REQUEST_NULL)?;
        let comm = comm::find(comm)?;
        let message = check(arguments, &comm)?;
        store(request, arguments.start(&comm, message).into_handle())
    }
}

/// Carries out a message and stores its status.
///
/// # Safety
/// As [`Arguments::start`]. `status` is null or valid for writes.
unsafe fn carry_out(arguments: &Arguments, check: Check, comm: Handle, status: *mut Status) -> Outcome {
    let comm = comm::find(comm)?;
    let message = check(arguments, &comm)?;
    // SAFETY: by the contract; the message is done when this returns.
    unsafe { store_status(status, arguments.start(&comm, message).wait()) }
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
    guard("MPI_Isend", || unsafe { begin(&arguments, Arguments::sent, comm, request) })
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
    guard("MPI_Irecv", || unsafe { begin(&arguments, Arguments::received, comm, request) })
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
    // SAFETY: by the contract.
    guard("MPI_Send", || unsafe { carry_out(&arguments, Arguments::sent, comm, std::ptr::null_mut()) })
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
    // SAFETY: by the contract.
    guard("MPI_Recv", || unsafe { carry_out(&arguments, Arguments::received, comm, status) })
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
    destination: c_int,
    send_tag: c_int,
    receive: *mut c_void,
    receive_count: c_int,
    receive_type: Handle,
    source: c_int,
    receive_tag: c_int,
    comm: Handle,
    status: *mut Status,
) -> c_int {
    let sent = Arguments {
        memory: send.cast_mut(),
        count: send_count,
        datatype: send_type,
        peer: destination,
        tag: send_tag,
    };
    let received = Arguments {
        memory: receive,
        count: receive_count,
        datatype: receive_type,
        peer: source,
        tag: receive_tag,
    };
    guard("MPI_Sendrecv", || {
        let comm = comm::find(comm)?;
        // Nothing begins unless all arguments are valid.
        let (to_receive, to_send) = (received.received(&comm)?, sent.sent(&comm)?);
        // SAFETY: by the contract; both messages are done when this returns.
        unsafe {
            let mut receiving = received.start(&comm, to_receive);
            let mut sending = sent.start(&comm, to_send);
            let outcome = store_status(status, receiving.wait());
            outcome.and(sending.wait().map(drop))
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
