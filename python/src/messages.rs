//! Messages with tags, which progress beside collectives.

use crate::work::Completion;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use unisono::{MessageInfo, RecvBuffer, SendBuffer, Work};

/// The memory of a message, at an address. Its owner is kept by the message's [`Completion`].
pub(crate) struct MessageMemory {
    address: usize,
    bytes: usize,
}

impl MessageMemory {
    /// Describes the memory of a message.
    ///
    /// # Safety
    /// The memory is valid until the message has ended: for reads if it is sent, for writes if it
    /// is received. Nobody writes it meanwhile, and nobody reads it while it is received.
    pub(crate) unsafe fn new(address: usize, bytes: usize) -> Self {
        Self { address, bytes }
    }
}

impl SendBuffer for MessageMemory {
    fn message(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.bytes) }
    }
}

impl RecvBuffer for MessageMemory {
    fn message_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        let start = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes) }
    }
}

/// Completes a handle of this package when a handle of the library has a result.
struct Forward<R> {
    work: Mutex<Option<Work<R>>>,
    completion: Arc<Completion>,
    info_of: fn(R) -> Option<MessageInfo>,
}

/// Completes `completion` with the result of `work`.
pub(crate) fn forward<R: Send + 'static>(
    work: Work<R>,
    completion: &Arc<Completion>,
    info_of: fn(R) -> Option<MessageInfo>,
) {
    let completion = Arc::clone(completion);
    let forward = Arc::new(Forward { work: Mutex::new(Some(work)), completion, info_of });
    forward.poll();
}

impl<R: Send + 'static> Forward<R> {
    fn poll(self: Arc<Self>) {
        let mut work = self.work.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(pending) = work.as_mut() else { return };
        let waker = Waker::from(Arc::clone(&self));
        let Poll::Ready(result) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) else { return };
        *work = None;
        drop(work);
        self.completion.complete_message(result.map(self.info_of));
    }
}

impl<R: Send + 'static> Wake for Forward<R> {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}
