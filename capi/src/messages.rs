//! Messages with tags.

use crate::buffers::check_memory;
use crate::comm::{UnisonoComm, comm_ref, store};
use crate::error::{Failure, guard};
use crate::requests::{Outcome, UnisonoRequest, check_may_wait};
use std::ffi::{c_int, c_void};
use unisono_core::{Communicator, MessageInfo, RecvBuffer, SendBuffer, Work};

/// The source, the tag and the length of a message, as `unisono_message_info` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UnisonoMessageInfo {
    source: usize,
    tag: u64,
    bytes: usize,
}

impl From<MessageInfo> for UnisonoMessageInfo {
    fn from(info: MessageInfo) -> Self {
        Self { source: info.source, tag: info.tag, bytes: info.bytes }
    }
}

/// The memory of a message, which its caller keeps until the message is done.
struct RawMessage {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the message until it is done, by the contract of the functions
// here. The thread that accesses it does not matter.
unsafe impl Send for RawMessage {}

impl RawMessage {
    fn new(pointer: *const c_void, bytes: usize) -> Result<Self, Failure> {
        check_memory(pointer.cast(), bytes)?;
        let pointer = if bytes == 0 { std::ptr::dangling_mut() } else { pointer.cast_mut().cast() };
        Ok(Self { pointer, bytes })
    }
}

impl SendBuffer for RawMessage {
    fn message(&self) -> &[u8] {
        // SAFETY: valid for reads until the message is done, by the contract of the functions here.
        // `new` has checked the length, and empty slices need no memory.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }
}

impl RecvBuffer for RawMessage {
    fn message_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid for writes until the message is done, by the contract of the functions
        // here. `new` has checked the length, and empty slices need no memory.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

/// Starts to send a message.
fn start_send(comm: &Communicator, buffer: RawMessage, to: usize, tag: u64) -> Work<Outcome> {
    comm.isend(buffer, to, tag).map(|_| None)
}

/// Starts to receive a message.
fn start_recv(comm: &Communicator, buffer: RawMessage, from: usize, tag: u64) -> Work<Outcome> {
    comm.irecv(buffer, some_rank(from), some_tag(tag)).map(|(_, info)| Some(info))
}

fn some_rank(rank: usize) -> Option<usize> {
    (rank != ANY_RANK).then_some(rank)
}

fn some_tag(tag: u64) -> Option<u64> {
    (tag != ANY_TAG).then_some(tag)
}

/// Starts to send `bytes` bytes to rank `to` under `tag`.
///
/// # Safety
/// `comm` is null or a handle; `request` is null or valid for writes. `buffer` is valid for reads
/// of `bytes` bytes, and nobody writes them, until the request is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_isend(
    comm: *const UnisonoComm,
    buffer: *const c_void,
    bytes: usize,
    to: usize,
    tag: u64,
    request: *mut *mut UnisonoRequest,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { store(request, std::ptr::null_mut()) }?;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let work = start_send(comm, RawMessage::new(buffer, bytes)?, to, tag);
        // SAFETY: by the contract.
        unsafe { store(request, UnisonoRequest::handle(work)) }
    })
}

/// Starts to receive a message of at most `bytes` bytes from rank `from` under `tag`.
///
/// # Safety
/// `comm` is null or a handle; `request` is null or valid for writes. `buffer` is valid for writes
/// of `bytes` bytes, and nobody else accesses them, until the request is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_irecv(
    comm: *const UnisonoComm,
    buffer: *mut c_void,
    bytes: usize,
    from: usize,
    tag: u64,
    request: *mut *mut UnisonoRequest,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { store(request, std::ptr::null_mut()) }?;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let work = start_recv(comm, RawMessage::new(buffer, bytes)?, from, tag);
        // SAFETY: by the contract.
        unsafe { store(request, UnisonoRequest::handle(work)) }
    })
}

/// Sends a message, and returns when its buffer may be written again.
///
/// # Safety
/// `comm` is null or a handle. `buffer` is valid for reads of `bytes` bytes, and nobody writes them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_send(
    comm: *const UnisonoComm,
    buffer: *const c_void,
    bytes: usize,
    to: usize,
    tag: u64,
) -> u32 {
    guard(|| {
        check_may_wait()?;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        start_send(comm, RawMessage::new(buffer, bytes)?, to, tag).wait()?;
        Ok(())
    })
}

/// Receives a message. Stores its source, tag and length, unless `info` is null.
///
/// # Safety
/// `comm` is null or a handle; `info` is null or valid for writes. `buffer` is valid for writes of
/// `bytes` bytes, and nobody else accesses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_recv(
    comm: *const UnisonoComm,
    buffer: *mut c_void,
    bytes: usize,
    from: usize,
    tag: u64,
    info: *mut UnisonoMessageInfo,
) -> u32 {
    guard(|| {
        check_may_wait()?;
        // SAFETY: by the contract.
        let comm = unsafe { comm_ref(comm) }?;
        let message = start_recv(comm, RawMessage::new(buffer, bytes)?, from, tag).wait()?;
        match message {
            // SAFETY: by the contract.
            Some(message) if !info.is_null() => unsafe { store(info, message.into()) },
            _ => Ok(()),
        }
    })
}

/// Stores 1 in `found` and the message in `info` if one has arrived that no receive has taken.
///
/// # Safety
/// `comm` is null or a handle; `found` and `info` are null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_probe(
    comm: *const UnisonoComm,
    from: usize,
    tag: u64,
    found: *mut c_int,
    info: *mut UnisonoMessageInfo,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { store(found, 0) }?;
        // SAFETY: by the contract.
        let message = unsafe { comm_ref(comm) }?.probe(some_rank(from), some_tag(tag))?;
        // SAFETY: by the contract.
        unsafe { store(found, c_int::from(message.is_some())) }?;
        match message {
            // SAFETY: by the contract.
            Some(message) if !info.is_null() => unsafe { store(info, message.into()) },
            _ => Ok(()),
        }
    })
}

/// `UNISONO_ANY_RANK` and `UNISONO_ANY_TAG` of the header.
const ANY_RANK: usize = usize::MAX;
const ANY_TAG: u64 = u64::MAX;
