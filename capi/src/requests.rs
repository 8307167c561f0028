//! Requests, which are handles of started operations.

use crate::comm::{UnisonoComm, comm_ref, store};
use crate::error::{Failure, NOT_DONE, argument, guard, keep};
use crate::messages::UnisonoMessageInfo;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use unisono_core::{Communicator, Error, MessageInfo, Work};

/// The result of a started operation. A receive has the message that it took.
pub(crate) type Outcome = Option<MessageInfo>;

/// An operation under way, or its result, behind a pointer of C.
pub struct UnisonoRequest {
    state: Mutex<State>,
    /// Signaled when a waiting thread hands the operation back, and when it is done.
    changed: Condvar,
}

struct State {
    /// The operation. `None` while a thread waits for it, and once it is done.
    work: Option<Work<Outcome>>,
    result: Option<Result<Outcome, Error>>,
    /// True once the caller was given the result, by a call or by the callback.
    is_told: bool,
    callback: Option<Callback>,
}

impl State {
    /// Returns the result, if there is one, for the caller.
    fn tell(&mut self) -> Option<Result<Outcome, Error>> {
        self.is_told |= self.result.is_some();
        self.result.clone()
    }
}

/// A function of C and its argument.
struct Callback {
    function: unsafe extern "C" fn(code: u32, data: *mut c_void),
    data: *mut c_void,
}

// SAFETY: `unisono_request_on_complete` demands a function and data for any thread.
unsafe impl Send for Callback {}

impl UnisonoRequest {
    /// Returns the handle of an operation.
    pub(crate) fn handle(work: Work<Outcome>) -> *mut UnisonoRequest {
        let state = State { work: Some(work), result: None, is_told: false, callback: None };
        Arc::into_raw(Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })).cast_mut()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes the result up if the operation is done and no thread waits for it.
    fn settle(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        match state.work.take_if(|work| work.is_finished()) {
            Some(work) => self.finish(state, work.wait()),
            None => state,
        }
    }

    /// Stores the result and calls the callback, without the lock.
    fn finish<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        result: Result<Outcome, Error>,
    ) -> MutexGuard<'s, State> {
        let callback = state.callback.take();
        state.result = Some(result.clone());
        state.is_told |= callback.is_some();
        self.changed.notify_all();
        drop(state);
        if let Some(callback) = callback {
            callback.call(result);
        }
        self.lock()
    }

    /// Lets the thread that completes the operation call [`Wake::wake`].
    fn watch(self: &Arc<Self>) {
        let mut state = self.lock();
        let Some(work) = &mut state.work else { return };
        let waker = Waker::from(Arc::clone(self));
        if let Poll::Ready(result) = Pin::new(work).poll(&mut Context::from_waker(&waker)) {
            state.work = None;
            drop(self.finish(state, result));
        }
    }

    /// Waits for the result, until the deadline if there is one.
    fn wait(self: &Arc<Self>, deadline: Option<Instant>) -> Result<Outcome, Failure> {
        let mut state = self.settle();
        loop {
            if let Some(result) = state.tell() {
                return Ok(result?);
            }
            check_may_wait()?;
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(Failure::Code(NOT_DONE, STILL_UNDER_WAY.to_owned()));
            }
            state = match state.work.take() {
                Some(work) => {
                    drop(state);
                    self.wait_for(work, remaining)
                }
                None => self.sleep(state, remaining),
            };
        }
    }

    /// Waits for the operation itself, and hands it back after `remaining`.
    fn wait_for(self: &Arc<Self>, work: Work<Outcome>, remaining: Option<Duration>) -> MutexGuard<'_, State> {
        let waited = match remaining {
            Some(remaining) => work.wait_timeout(remaining),
            None => Ok(work.wait()),
        };
        let mut state = self.lock();
        match waited {
            Ok(result) => self.finish(state, result),
            Err(work) => {
                state.work = Some(work);
                let is_watched = state.callback.is_some();
                self.changed.notify_all();
                drop(state);
                if is_watched {
                    // It may have completed while no one could see it.
                    self.watch();
                }
                self.lock()
            }
        }
    }

    /// Sleeps while another thread waits for the operation.
    fn sleep<'s>(&self, state: MutexGuard<'s, State>, remaining: Option<Duration>) -> MutexGuard<'s, State> {
        match remaining {
            Some(remaining) => {
                let slept = self.changed.wait_timeout(state, remaining);
                slept.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
            None => self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }
}

/// Starts an operation of a communicator and stores its request, or null if it cannot be started.
///
/// # Safety
/// `comm` is null or a handle; `request` is null or valid for writes.
pub(crate) unsafe fn start(
    comm: *const UnisonoComm,
    request: *mut *mut UnisonoRequest,
    operation: impl FnOnce(&Communicator) -> Result<Work<Outcome>, Failure>,
) -> Result<(), Failure> {
    // SAFETY: by the contract.
    unsafe {
        store(request, std::ptr::null_mut())?;
        let work = operation(comm_ref(comm)?)?;
        store(request, UnisonoRequest::handle(work))
    }
}

impl Wake for UnisonoRequest {
    fn wake(self: Arc<Self>) {
        drop(self.settle());
    }
}

impl Callback {
    fn call(self, result: Result<Outcome, Error>) {
        let code = result.err().map_or(0, |error| keep(Failure::Library(error)));
        let outer = IN_CALLBACK.replace(true);
        // SAFETY: by the contract of `unisono_request_on_complete`.
        unsafe { (self.function)(code, self.data) };
        IN_CALLBACK.set(outer);
    }
}

thread_local! {
    /// True while this thread runs a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Fails in a callback, because the waiting thread would be the one that has to move the operation.
pub(crate) fn check_may_wait() -> Result<(), Failure> {
    if IN_CALLBACK.get() { argument("a callback must not wait for an operation") } else { Ok(()) }
}

/// Returns the request of a handle, which lives for the whole call.
///
/// # Safety
/// `request` is null or a handle that was not freed.
unsafe fn request_arc(request: *const UnisonoRequest) -> Result<Arc<UnisonoRequest>, Failure> {
    if request.is_null() {
        return argument("the request is NULL");
    }
    // SAFETY: made by `handle`, and by the contract not freed.
    unsafe {
        Arc::increment_strong_count(request);
        Ok(Arc::from_raw(request))
    }
}

/// Waits until the operation is done, but not longer than `timeout_ms`, unless it is negative.
///
/// # Safety
/// `request` is null or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_wait(request: *const UnisonoRequest, timeout_ms: i64) -> u32 {
    guard(|| {
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        // SAFETY: by the contract.
        unsafe { request_arc(request) }?.wait(deadline).map(drop)
    })
}

/// Stores 1 if the operation is done, else 0. Never waits.
///
/// # Safety
/// `request` is null or a handle that was not freed; `done` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_test(request: *const UnisonoRequest, done: *mut c_int) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let request = unsafe { request_arc(request) }?;
        let is_done = request.settle().result.is_some();
        // SAFETY: by the contract.
        unsafe { store(done, c_int::from(is_done)) }
    })
}

/// Stores source, tag and length of the message that a receive took.
///
/// # Safety
/// `request` is null or a handle that was not freed; `info` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_request_info(
    request: *const UnisonoRequest,
    info: *mut UnisonoMessageInfo,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let request = unsafe { request_arc(request) }?;
        let Some(result) = request.settle().tell() else {
            return Err(Failure::Code(NOT_DONE, STILL_UNDER_WAY.to_owned()));
        };
        let Some(message) = result? else {
            return argument("the request is no receive");
        };
        // SAFETY: by the contract.
        unsafe { store(info, message.into()) }
    })
}

/// Calls `function` once with the code of the result and `data`, when the operation is done.
///
/// # Safety
/// `request` is null or a handle that was not freed. `function` is null or can be called with
/// `data` on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_request_on_complete(
    request: *const UnisonoRequest,
    function: Option<unsafe extern "C" fn(code: u32, data: *mut c_void)>,
    data: *mut c_void,
) -> u32 {
    guard(|| {
        // SAFETY: by the contract.
        let request = unsafe { request_arc(request) }?;
        let Some(function) = function else {
            return argument("the function is NULL");
        };
        let callback = Callback { function, data };
        let mut state = request.settle();
        if let Some(result) = state.tell() {
            drop(state);
            callback.call(result);
            return Ok(());
        }
        if state.callback.is_some() {
            return argument("the request has a function already");
        }
        state.callback = Some(callback);
        drop(state);
        request.watch();
        Ok(())
    })
}

/// Frees a request whose operation is done, and returns the code of a failure that the caller was
/// not given before. Null is allowed.
///
/// # Safety
/// `request` is null or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_request_free(request: *mut UnisonoRequest) -> u32 {
    guard(|| {
        if request.is_null() {
            return Ok(());
        }
        // SAFETY: by the contract.
        let kept = unsafe { request_arc(request) }?;
        let mut state = kept.settle();
        let is_told = state.is_told;
        let Some(result) = state.tell() else {
            return Err(Failure::Code(NOT_DONE, STILL_UNDER_WAY.to_owned()));
        };
        drop(state);
        // SAFETY: made by `handle`, and by the contract not freed.
        drop(unsafe { Arc::from_raw(request.cast_const()) });
        if is_told { Ok(()) } else { Ok(result.map(drop)?) }
    })
}

const STILL_UNDER_WAY: &str = "the operation is under way; wait for it, or abort its communicator";
