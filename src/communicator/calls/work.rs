//! Operations that run in the background and own their buffers, and the handles of these
//! operations.

use crate::communicator::api::messages::{MessageHandle, MessageState};
use crate::communicator::calls::task_queue::{Task, TaskQueue, ThreadRefused};
use crate::communicator::{Communicator, SELF_WAIT_MESSAGE, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Condvar, Instant, Mutex, MutexGuard};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use unisono_transports::sys::fork_guard;

/// A handle of an operation that runs in the background. [`Work::wait`] or `.await` returns its
/// result.
///
/// Dropping the handle does not stop the operation, which keeps its buffer until it ends. If the
/// operation fails, every later call on the communicator returns its error.
///
/// The handle is a future that works with every executor: the operation runs on a thread of the
/// library, which calls the waker, and polling never blocks. Calls without `_async` in their names
/// block their thread, as [`Work::wait`] does. [`Communicator::spawn`] makes a future of such a
/// call. To connect ranks in async code, use the executor's function for blocking calls.
///
/// ```
/// # use unisono::{Communicator, Result, Sum};
/// async fn step(comm: Communicator, gradients: Vec<f32>) -> Result<Vec<f32>> {
///     let sums = comm.all_reduce_async(gradients, Sum).await?;
///     comm.spawn(|comm| comm.barrier()).await?;
///     Ok(sums)
/// }
/// # let comm = Communicator::local(1)?.remove(0);
/// # let mut task = std::pin::pin!(step(comm, vec![1.0; 4]));
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # let sums = loop {
/// #     if let std::task::Poll::Ready(sums) = task.as_mut().poll(&mut context) { break sums? }
/// #     std::thread::yield_now();
/// # };
/// # assert_eq!(sums, [1.0; 4]);
/// # Ok::<(), unisono::Error>(())
/// ```
#[must_use = "the buffer that went into the operation comes back through this"]
#[derive(Debug)]
pub struct Work<R> {
    completion: Arc<Completion<R>>,
}

pub(in crate::communicator) struct Completion<R> {
    state: Mutex<CompletionState<R>>,
    finished: Condvar,
    /// The communicator that runs the operation.
    pub(in crate::communicator) shared: Weak<Shared>,
    /// The message, if the operation is a message, which threads move while they wait.
    pub(in crate::communicator) message: Option<MessageState>,
    /// The position of the operation among the calls, if the operation was started and waits for a
    /// thread.
    position: OnceLock<u64>,
    /// The message whose result this handle converts, if there is one.
    pub(in crate::communicator) origin: Option<Arc<dyn MessageHandle>>,
}

struct CompletionState<R> {
    result: Option<Result<R>>,
    /// True if the result has been returned.
    delivered: bool,
    waker: Option<Waker>,
    /// Number of threads that sleep until the result is there. It is counted because a wake without
    /// sleepers would still cost a system call.
    sleepers: usize,
    callback: Option<Callback<R>>,
}

/// The handle of a send can be dropped before or after the send fails.
impl<R> Drop for Completion<R> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(Err(error)) = state.result.take() {
            self.warn_of_loss(&error);
        }
    }
}

/// A function that takes the result, so that it is not stored.
type Callback<R> = Box<dyn FnOnce(Result<R>) + Send>;

impl<R> Completion<R> {
    pub(in crate::communicator) fn new(shared: Weak<Shared>) -> Arc<Self> {
        Self::with_message(shared, None)
    }

    pub(in crate::communicator) fn with_message(
        shared: Weak<Shared>,
        message: Option<MessageState>,
    ) -> Arc<Self> {
        Arc::new(Self::unfinished(shared, message))
    }

    fn unfinished(shared: Weak<Shared>, message: Option<MessageState>) -> Self {
        let state =
            CompletionState { result: None, delivered: false, waker: None, sleepers: 0, callback: None };
        Self {
            state: Mutex::new(state),
            finished: Condvar::new(),
            shared,
            message,
            position: OnceLock::new(),
            origin: None,
        }
    }

    pub(in crate::communicator) fn complete(&self, result: Result<R>) {
        let mut state = self.lock();
        if let Some(callback) = state.callback.take() {
            // The callback runs without the lock, because it is code of the caller and may use the
            // communicator.
            drop(state);
            return callback(result);
        }
        state.result = Some(result);
        let (waker, sleepers) = (state.waker.take(), state.sleepers);
        drop(state);
        if sleepers > 0 {
            self.finished.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn on_complete(&self, callback: Callback<R>) {
        let mut state = self.lock();
        match state.result.take() {
            None => state.callback = Some(callback),
            Some(result) => {
                drop(state);
                callback(result);
            }
        }
    }

    pub(in crate::communicator) fn wait(&self) -> Result<R> {
        loop {
            if let Some(result) = self.wait_until(None) {
                return result;
            }
        }
    }

    /// Waits for the result until the deadline. Returns `None` if there is no result by then.
    pub(in crate::communicator) fn wait_until(&self, deadline: Option<Instant>) -> Option<Result<R>> {
        // A result that is there needs no wait, so a thread that must not wait gets it, too.
        if let Some(result) = self.lock().result.take() {
            return Some(result);
        }
        if let Err(error) = self.check_waiter() {
            return Some(Err(error));
        }
        if let Some(message) = self.message_state() {
            self.drive(message, deadline);
        } else if deadline.is_none()
            && let Some(&position) = self.position.get()
            && let Some(shared) = self.shared.upgrade()
        {
            // A caller with a deadline runs no operation itself, because the operation could last
            // longer than the deadline.
            shared.tasks.help(&shared, position);
        }
        let mut state = self.lock();
        loop {
            if let Some(result) = state.result.take() {
                return Some(result);
            }
            let time_left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if time_left.is_some_and(|time_left| time_left.is_zero()) {
                return None;
            }
            state = self.sleep_with(state, time_left);
        }
    }

    /// Returns the message to which the handle belongs.
    pub(in crate::communicator) fn message_state(&self) -> Option<&MessageState> {
        self.message.as_ref().or_else(|| self.origin.as_ref()?.message())
    }

    /// Fails if this thread would wait forever.
    fn check_waiter(&self) -> Result<()> {
        let Some(shared) = self.shared.upgrade() else {
            return Ok(());
        };
        if shared.is_used_by_this_thread() {
            return Err(Error::invalid_usage(SELF_WAIT_MESSAGE));
        }
        if shared.process != fork_guard::current_pid() {
            return Err(Error::invalid_usage(STARTED_BEFORE_FORK));
        }
        Ok(())
    }

    /// Sleeps until the result is there, but not longer than `time`.
    pub(in crate::communicator) fn sleep(&self, time: Duration) {
        let state = self.lock();
        if state.result.is_none() {
            drop(self.sleep_with(state, Some(time)));
        }
    }

    fn sleep_with<'s>(
        &'s self,
        mut state: MutexGuard<'s, CompletionState<R>>,
        time: Option<Duration>,
    ) -> MutexGuard<'s, CompletionState<R>> {
        state.sleepers += 1;
        let mut state = match time {
            None => self.finished.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
            Some(time) => {
                let waited = self.finished.wait_timeout(state, time);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
        };
        state.sleepers -= 1;
        state
    }

    pub(in crate::communicator) fn is_finished(&self) -> bool {
        self.lock().result.is_some()
    }

    pub(in crate::communicator) fn poll(&self, context: &Context<'_>) -> Poll<Result<R>> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => {
                state.delivered = true;
                Poll::Ready(result)
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_delivered(&self) -> bool {
        self.lock().delivered
    }

    fn lock(&self) -> MutexGuard<'_, CompletionState<R>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<R> fmt::Debug for Completion<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_finished() { "finished" } else { "under way" })
    }
}

impl<R: Send + 'static> Work<R> {
    /// Waits until the operation has finished, and returns its result.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(self) -> Result<R> {
        self.completion.wait()
    }

    /// Waits until the operation has finished, but not longer than `limit`. Returns its result, or
    /// the handle if there is no result yet.
    ///
    /// The operation goes on after the limit. It fails if nothing moves for
    /// [`Config::timeout`](crate::Config::timeout).
    ///
    /// # Errors
    /// The handle, so that the caller can go on waiting.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # use std::time::Duration;
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let work = comm.all_reduce_async(vec![1.0f32; 1000], Sum);
    /// match work.wait_timeout(Duration::from_secs(5)) {
    ///     Ok(result) => assert_eq!(result?.len(), 1000),
    ///     Err(work) => println!("still {work:?}"),
    /// }
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn wait_timeout(self, limit: Duration) -> std::result::Result<Result<R>, Self> {
        match self.completion.wait_until(Instant::now().checked_add(limit)) {
            Some(result) => Ok(result),
            None => Err(self),
        }
    }

    /// Returns the handle of an operation that was refused.
    pub(in crate::communicator) fn failed(shared: &Arc<Shared>, error: Error) -> Self {
        let completion = Completion::new(Arc::downgrade(shared));
        completion.complete(Err(error));
        Self { completion }
    }

    pub(in crate::communicator) fn of(completion: Arc<Completion<R>>) -> Self {
        Self { completion }
    }

    /// Returns true if [`Work::wait`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.completion.is_finished()
    }

    /// Returns true if the handle was polled as a future and has returned its result. Then it must
    /// not be polled again, as `FusedFuture` requires.
    pub fn is_terminated(&self) -> bool {
        self.completion.is_delivered()
    }

    /// Applies `convert` to the result when the operation succeeds. `convert` runs on the same
    /// thread as a callback of [`Work::and_then`] would.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let length = comm.all_reduce_async(vec![1.0f32; 10], Sum).map(|sums| sums.len());
    /// assert_eq!(length.wait()?, 10);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn map<S: Send + 'static>(self, convert: impl FnOnce(R) -> S + Send + 'static) -> Work<S> {
        self.and_then(move |value| Ok(convert(value)))
    }

    /// Calls `callback` once with the result when the operation succeeds. The new handle has the
    /// callback's result. After an error the callback is not called.
    ///
    /// If the operation has finished, the callback runs at once. Otherwise it runs on the thread of
    /// the operation, before the next operation begins. This is a thread of the library, or a
    /// thread that waits for this or a later operation. The callback may start operations. If it
    /// waits for an operation of the same communicator, it gets an error.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let sums = comm.all_reduce_async(vec![1.0f32; 1000], Sum);
    /// let mean = sums.and_then(|sums| Ok(sums.iter().sum::<f32>() / 1000.0));
    /// assert_eq!(mean.wait()?, 1.0);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn and_then<S: Send + 'static>(
        self,
        callback: impl FnOnce(R) -> Result<S> + Send + 'static,
    ) -> Work<S> {
        let origin = self.completion.message_state().map(|_| Arc::clone(&self.completion) as _);
        let shared = self.completion.shared.clone();
        let mut slot = Completion::unfinished(shared, None);
        slot.origin = origin;
        // The new handle depends on the same operation, so a thread that waits for it may run that
        // operation, too.
        slot.position = self.completion.position.clone();
        let slot = Arc::new(slot);
        let filled = Arc::clone(&slot);
        let follow = move |value| {
            catch_unwind(AssertUnwindSafe(|| callback(value)))
                .unwrap_or_else(|_| Err(Error::invalid_usage("a callback panicked")))
        };
        self.completion
            .on_complete(Box::new(move |result: Result<R>| filled.complete(result.and_then(follow))));
        Work { completion: slot }
    }
}

impl<R> Future for Work<R> {
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.completion.poll(context)
    }
}

impl Communicator {
    /// Starts `operation` and returns at once. The operation owns its buffers, and can return them
    /// as its result.
    ///
    /// Started operations and all other calls on this communicator run one after the other, in the
    /// order in which they were made. Thousands of operations can wait at the same time.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let mut gradients = vec![1.0f32; 1000];
    /// let pending = comm.spawn(move |comm| {
    ///     comm.all_reduce(&mut gradients, Sum)?;
    ///     Ok(gradients)
    /// });
    /// // ... compute something else ...
    /// let gradients = pending.wait()?;
    /// # assert_eq!(gradients[999], 1.0);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn spawn<R: Send + 'static>(
        &self,
        operation: impl FnOnce(&Communicator) -> Result<R> + Send + 'static,
    ) -> Work<R> {
        let slot = Completion::new(Arc::downgrade(&self.shared));
        if self.is_forked() {
            // In a forked child process there is no worker thread, because it belongs to the
            // parent.
            slot.complete(Err(self.fork_error()));
            return Work { completion: slot };
        }
        let filled = Arc::clone(&slot);
        let handle = self.with_turn();
        let task: Task = Box::new(move || {
            let result = catch_panic(&handle, operation);
            // This handle may be the last one. It is dropped before the result is stored, because
            // the caller may end the process when it has the result.
            drop(handle);
            filled.complete(result);
        });
        match TaskQueue::start(&self.shared, task) {
            Ok(position) => _ = slot.position.set(position),
            Err(ThreadRefused) => {
                let refused = ErrorKind::System("no thread could be started".to_owned());
                slot.complete(Err(self.attach_rank(Error::new(refused))));
            }
        }
        Work { completion: slot }
    }
}

/// Runs `operation`. A panic in it ends the communicator instead of this thread.
pub(in crate::communicator) fn catch_panic<R>(
    comm: &Communicator,
    operation: impl FnOnce(&Communicator) -> Result<R>,
) -> Result<R> {
    catch_unwind(AssertUnwindSafe(|| operation(comm))).unwrap_or_else(|_| {
        comm.abort("an operation panicked");
        let kind = ErrorKind::abort_request(comm.rank(), "an operation panicked");
        Err(comm.attach_rank(Error::new(kind)))
    })
}

const STARTED_BEFORE_FORK: &str =
    "this was started before the process was forked, and its thread is the parent's; wait for it there";
