//! Messages with tags.

use crate::buffers::check_memory;
use crate::comm::{UnisonoComm, comm_ref, store};
use crate::error::{Failure, guard};
use crate::requests::{Outcome, UnisonoRequest, start};
use std::ffi::{c_int, c_void};
use unisono_core::foreign::RawMemory;
use unisono_core::{Communicator, MessageInfo, Work};

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

/// Returns the memory of a message, which its caller keeps until the message is done.
///
/// # Safety
/// As [`RawMemory::new`].
unsafe fn memory(pointer: *const c_void, bytes: usize) -> Result<RawMemory, Failure> {
    check_memory(pointer.cast(), bytes)?;
    // SAFETY: by the contract.
    Ok(unsafe { RawMemory::new(pointer.cast_mut().cast(), bytes) })
}

/// Starts to send a message.
fn start_send(comm: &Communicator, buffer: RawMemory, receiver: usize, tag: u64) -> Work<Outcome> {
    comm.isend(buffer, receiver, tag).map(|_| None)
}

/// Starts to receive a message.
fn start_recv(comm: &Communicator, buffer: RawMemory, sender: usize, tag: u64) -> Work<Outcome> {
    comm.irecv(buffer, some_rank(sender), some_tag(tag)).map(|(_, info)| Some(info))
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
    // SAFETY: by the contract.
    let started = |comm: &Communicator| Ok(start_send(comm, unsafe { memory(buffer, bytes) }?, to, tag));
    // SAFETY: by the contract.
    guard(|| unsafe { start(comm, request, started) })
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
    // SAFETY: by the contract.
    let started = |comm: &Communicator| Ok(start_recv(comm, unsafe { memory(buffer, bytes) }?, from, tag));
    // SAFETY: by the contract.
    guard(|| unsafe { start(comm, request, started) })
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
