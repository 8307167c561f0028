//! Messages with tags, which progress beside collectives.

use crate::work::Completion;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use unisono::{MessageInfo, Work};

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
