//! Messages with tags, which progress beside collectives.

use crate::work::{Completion, Driver};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use unisono::{MessageInfo, Work};

/// Completes a handle of this package when a handle of the library has a result.
struct Forward<R> {
    /// Empty after the end, and while a thread waits.
    work: Mutex<Option<Work<R>>>,
    completion: Arc<Completion>,
    info_of: fn(R) -> Option<MessageInfo>,
}

/// Completes `completion` with the result of `work`. Returns what lets waiting threads move the
/// message.
pub(crate) fn forward<R: Send + 'static>(
    work: Work<R>,
    completion: &Arc<Completion>,
    info_of: fn(R) -> Option<MessageInfo>,
) -> Arc<dyn Driver> {
    let completion = Arc::clone(completion);
    let forward = Arc::new(Forward { work: Mutex::new(Some(work)), completion, info_of });
    Arc::clone(&forward).poll();
    forward
}

impl<R: Send + 'static> Forward<R> {
    fn poll(self: Arc<Self>) {
        let mut work = self.lock();
        let Some(pending) = work.as_mut() else { return };
        let waker = Waker::from(Arc::clone(&self));
        let Poll::Ready(result) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) else { return };
        *work = None;
        drop(work);
        self.completion.complete_message(result.map(self.info_of));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Work<R>>> {
        self.work.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<R: Send + 'static> Driver for Forward<R> {
    fn drive(self: Arc<Self>, limit: Duration) {
        let Some(work) = self.lock().take() else { return };
        match work.wait_timeout(limit) {
            Ok(result) => self.completion.complete_message(result.map(self.info_of)),
            Err(work) => {
                *self.lock() = Some(work);
                // The message may have ended before the handle was back.
                self.poll();
            }
        }
    }
}

impl<R: Send + 'static> Wake for Forward<R> {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}
