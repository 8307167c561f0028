//! Background operations on borrowed buffers.

use crate::communicator::calls::op_queue::Ticket;
use crate::communicator::calls::work::{Completion, catch_panic};
use crate::communicator::{Communicator, SELF_WAIT_MESSAGE};
use crate::error::{Error, Result};
use crate::reduce_op::ReduceOp;
use crate::sync::mpsc::{Sender, channel};
use crate::sync::{Mutex, MutexGuard, thread};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use unisono_reducers::Element;

type Task<'env> = Box<dyn FnOnce(&Communicator) + Send + 'env>;

/// Starts operations on buffers that outlive the scope; see [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'env> {
    comm: &'env Communicator,
    tasks: Sender<(Ticket, Task<'env>)>,
    failures: Arc<Failures>,
}

/// A handle of an operation that runs in a scope.
///
/// The handle may be dropped. The scope waits for the operation in any case, and returns its error.
#[must_use = "wait for it, or drop it and let the scope return its error"]
#[derive(Debug)]
pub struct ScopedWork<R> {
    completion: Arc<Completion<R>>,
    failures: Arc<Failures>,
    /// The number of the operation among those of the scope.
    number: usize,
}

/// The errors of a scope's operations that no handle has returned.
#[derive(Debug, Default)]
struct Failures(Mutex<FailureList>);

#[derive(Debug, Default)]
struct FailureList {
    /// Number of operations that were started.
    started: usize,
    /// Errors by the number of their operation.
    errors: BTreeMap<usize, Error>,
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, FailureList> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<R> ScopedWork<R> {
    /// Returns the result of the operation. If it is an error, the scope need not return it.
    fn deliver(&self, result: Result<R>) -> Result<R> {
        if result.is_err() {
            self.failures.lock().errors.remove(&self.number);
        }
        result
    }

    /// Waits until the operation has finished, and returns its result.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(self) -> Result<R> {
        self.deliver(self.completion.wait())
    }

    /// Returns true if [`ScopedWork::wait`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.completion.is_finished()
    }
}

impl<R> Future for ScopedWork<R> {
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.completion.poll(context).map(|result| self.deliver(result))
    }
}

impl<'env> Scope<'env> {
    /// Starts `operation` and returns at once. Operations run in order.
    ///
    /// If the scope is inside an operation, such as one of [`Communicator::spawn`], `operation`
    /// runs at once.
    pub fn spawn<R: Send + 'env>(
        &self,
        operation: impl FnOnce(&Communicator) -> Result<R> + Send + 'env,
    ) -> ScopedWork<R> {
        let slot = Completion::new(Arc::downgrade(&self.comm.shared));
        let number = {
            let mut list = self.failures.lock();
            list.started += 1;
            list.started
        };
        let (filled, failures) = (Arc::clone(&slot), Arc::clone(&self.failures));
        let work = ScopedWork { completion: slot, failures: Arc::clone(&failures), number };
        let complete = move |result: Result<R>| {
            // The list gets the error before the handle does, because the handle removes the error
            // that it returns.
            if let Err(error) = &result {
                failures.lock().errors.insert(number, error.clone());
            }
            filled.complete(result);
        };
        if self.comm.is_forked() {
            complete(Err(self.comm.fork_error()));
            return work;
        }
        // A scope inside an operation is part of the turn of that operation. So the task runs here,
        // because a handle without the turn would wait forever.
        if self.comm.with_ticket {
            complete(catch_panic(self.comm, operation));
            return work;
        }
        if self.comm.shared.is_used_by_this_thread() {
            complete(Err(self.comm.usage_error(SELF_WAIT_MESSAGE)));
            return work;
        }
        let task: Task<'env> = Box::new(move |comm| complete(catch_panic(comm, operation)));
        let ticket = self.comm.shared.op_queue.take_ticket();
        if let Err(unsent) = self.tasks.send((ticket, task)) {
            // The thread could not be started, so this thread runs the operation.
            let (ticket, task) = unsent.0;
            self.comm.in_turn(ticket, task);
        }
        work
    }

    /// Starts an all_reduce in place. The handle returns the buffer.
    pub fn all_reduce<T: Element>(
        &self,
        buffer: &'env mut [T],
        reduction: ReduceOp,
    ) -> ScopedWork<&'env mut [T]> {
        self.spawn(move |comm| comm.all_reduce(buffer, reduction).map(|()| buffer))
    }

    /// Starts a broadcast. The handle returns the buffer.
    pub fn broadcast<T: Element>(&self, buffer: &'env mut [T], root: usize) -> ScopedWork<&'env mut [T]> {
        self.spawn(move |comm| comm.broadcast(buffer, root).map(|()| buffer))
    }

    /// Starts an all_gather. The handle returns the output.
    pub fn all_gather<T: Element>(
        &self,
        input: &'env [T],
        output: &'env mut [T],
    ) -> ScopedWork<&'env mut [T]> {
        self.spawn(move |comm| comm.all_gather(input, output).map(|()| output))
    }

    /// Starts a reduce_scatter. The handle returns the output.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &'env [T],
        output: &'env mut [T],
        reduction: ReduceOp,
    ) -> ScopedWork<&'env mut [T]> {
        self.spawn(move |comm| comm.reduce_scatter(input, output, reduction).map(|()| output))
    }
}

impl Communicator {
    /// Runs `body`, which can start operations on borrowed buffers. Returns when all of them have
    /// finished.
    ///
    /// # Errors
    /// The error of `body`. If `body` succeeds, the error of the first operation whose error no
    /// handle has returned.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let mut gradients = vec![1.0f32; 1000];
    /// comm.scope(|scope| {
    ///     let pending = scope.all_reduce(&mut gradients, Sum);
    ///     // ... compute something else ...
    ///     pending.wait().map(|_| ())
    /// })?;
    /// assert_eq!(gradients[0], 1.0);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// If handles are dropped, the scope returns the error of their operation. A scope whose `body`
    /// returns no result does not compile:
    ///
    /// ```compile_fail,E0308
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1).unwrap().remove(0);
    /// let mut gradients = vec![1.0f32; 1000];
    /// comm.scope(|scope| {
    ///     scope.all_reduce(&mut gradients, Sum);
    /// });
    /// ```
    ///
    /// A buffer stays borrowed until the scope ends:
    ///
    /// ```compile_fail,E0499
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1).unwrap().remove(0);
    /// let mut gradients = vec![1.0f32; 1000];
    /// comm.scope(|scope| {
    ///     let one = scope.all_reduce(&mut gradients, Sum);
    ///     let two = scope.all_reduce(&mut gradients, Sum);
    ///     one.wait().and(two.wait()).map(|_| ())
    /// });
    /// ```
    pub fn scope<'env, R>(&'env self, body: impl FnOnce(&Scope<'env>) -> Result<R>) -> Result<R> {
        let failures = Arc::new(Failures::default());
        let value = thread::scope(|threads| {
            let (tasks, todo) = channel::<(Ticket, Task<'env>)>();
            let serve =
                move || todo.into_iter().for_each(|(ticket, task)| self.in_background_turn(ticket, task));
            // If no thread can be started, `spawn` runs the tasks itself.
            let _ = thread::Builder::new().spawn_scoped(threads, serve);
            body(&Scope { comm: self, tasks, failures: Arc::clone(&failures) })
        })?;
        let first = failures.lock().errors.pop_first();
        first.map_or(Ok(value), |(_, error)| Err(error))
    }
}
