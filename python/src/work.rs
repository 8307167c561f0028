//! Handles of operations in the background.

use crate::callbacks;
use crate::error::{exception, timed_out};
use pyo3::prelude::*;
use std::io::{Write, stderr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use unisono::MessageInfo;

/// The result of an operation.
pub(crate) type Ended = unisono::Result<()>;

/// A handle of operations that run in the background, in the order in which they were started.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Work {
    pub(crate) completion: Arc<Completion>,
    /// Lets waiting threads move a message; `None` for other operations.
    pub(crate) driver: Option<Arc<dyn Driver>>,
}

/// An operation that a thread moves while it waits for it.
pub(crate) trait Driver: Send + Sync {
    /// Moves the operation until its end or the limit. Returns at once if another thread does.
    fn drive(self: Arc<Self>, limit: Duration);
}

/// The end of an operation, which several threads may wait for.
pub(crate) struct Completion {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Ended>,
    /// True once the caller has been given the result, or has asked to be called at the end.
    is_seen: bool,
    /// True once the caller has dropped the handle.
    is_dropped: bool,
    callbacks: Vec<Py<PyAny>>,
    /// The message that a receive got.
    info: Option<MessageInfo>,
    /// Objects whose memory the operation uses.
    keep: Option<Py<PyAny>>,
}

impl Completion {
    pub(crate) fn new(keep: Option<Py<PyAny>>) -> Arc<Self> {
        let state = Mutex::new(State { keep, ..State::default() });
        Arc::new(Self { state, ended: Condvar::new() })
    }

    /// Stores the result, unless there is one, and wakes all who wait.
    pub(crate) fn complete(&self, result: Ended) {
        let mut state = self.lock();
        if state.result.is_some() {
            return;
        }
        if let Err(error) = &result
            && state.is_dropped
            && !state.is_seen
        {
            // The interpreter may be ending, so nothing of it is used here. Nobody may read this.
            let _ = writeln!(stderr(), "unisono: an operation failed whose handle nobody kept: {error}");
        }
        state.result = Some(result);
        let (callbacks, keep) = (std::mem::take(&mut state.callbacks), state.keep.take());
        drop(state);
        self.ended.notify_all();
        // Without the interpreter's lock, the reference is given back when someone next takes it.
        drop(keep);
        if !callbacks.is_empty() {
            callbacks::run(callbacks);
        }
    }

    /// Stores the result of a message.
    pub(crate) fn complete_message(&self, result: unisono::Result<Option<MessageInfo>>) {
        if let Ok(info) = &result {
            self.lock().info = *info;
        }
        self.complete(result.map(drop));
    }

    fn result(&self) -> Option<Ended> {
        let mut state = self.lock();
        state.is_seen |= state.result.is_some();
        state.result.clone()
    }

    /// Notes that the caller has no handle any more. Returns an error that nobody has seen.
    fn drop_handle(&self) -> Option<unisono::Error> {
        let mut state = self.lock();
        state.is_dropped = true;
        match &state.result {
            Some(Err(error)) if !state.is_seen => Some(error.clone()),
            _ => None,
        }
    }

    /// Waits until the end, or until `deadline`, which returns nothing.
    fn wait_until(&self, deadline: Instant) -> Option<Ended> {
        let mut state = self.lock();
        while state.result.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        state.is_seen = true;
        state.result.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The time between two looks for signals, such as that of Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

#[pymethods]
impl Work {
    /// Waits until the operations have ended, for `timeout` seconds at most.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let slice_end = Instant::now() + SIGNAL_INTERVAL;
            let deadline = end.map_or(slice_end, |end| end.min(slice_end));
            if let Some(ended) = py.detach(|| self.wait_until(deadline)) {
                return raise(py, ended);
            }
            py.check_signals()?;
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(timed_out(py, limit.unwrap_or_default()));
            }
        }
    }

    /// Returns true if `wait` would return at once.
    fn is_finished(&self) -> bool {
        self.completion.lock().result.is_some()
    }

    /// Returns true if the operations have failed. The exception is not taken for seen.
    fn has_failed(&self) -> bool {
        matches!(self.completion.lock().result, Some(Err(_)))
    }

    /// Returns the exception of operations that failed, and None before their end.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        self.completion.result().and_then(|ended| raise(py, ended).err())
    }

    /// Returns (source, tag, bytes) of the message that a receive got, and None before that.
    fn message(&self) -> Option<(usize, u64, usize)> {
        self.completion.lock().info.map(|info| (info.source, info.tag, info.bytes))
    }

    /// Calls `callback` without arguments after the end, on a thread of its own. If the end has
    /// come, this thread calls it at once.
    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let mut state = self.completion.lock();
        state.is_seen = true;
        if state.result.is_none() {
            state.callbacks.push(callback);
            return Ok(());
        }
        drop(state);
        callback.call0(py).map(drop)
    }
}

impl Work {
    fn wait_until(&self, deadline: Instant) -> Option<Ended> {
        if let Some(driver) = &self.driver
            && !self.is_finished()
        {
            Arc::clone(driver).drive(deadline.saturating_duration_since(Instant::now()));
        }
        self.completion.wait_until(deadline)
    }
}

/// An error that the caller never looked at goes to `sys.unraisablehook`, which prints it.
impl Drop for Work {
    fn drop(&mut self) {
        if let Some(error) = self.completion.drop_handle() {
            Python::attach(|py| {
                // An exception may be on its way up while handles are dropped, and must stay.
                let raised = PyErr::take(py);
                exception(py, &error).write_unraisable(py, None);
                raised.into_iter().for_each(|raised| raised.restore(py));
            });
        }
    }
}

fn raise(py: Python<'_>, ended: Ended) -> PyResult<()> {
    ended.map_err(|error| exception(py, &error))
}
