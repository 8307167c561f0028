//! Threads that call Python after the end of operations.
//!
//! The worker thread of a communicator must not: a callback may wait for a later operation of the
//! same communicator. For the same reason a task never waits for another one. If no thread is idle,
//! a new one starts. A thread ends when it has been idle for a while.

use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;
use unisono::transport::sys::fork_guard::current_pid;

type Task = Vec<Py<PyAny>>;

struct Pool {
    /// The process that has the threads.
    process: u64,
    tasks: VecDeque<Task>,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { process: 0, tasks: VecDeque::new(), idle: 0 });
static ADDED: Condvar = Condvar::new();
const IDLE_MAX: Duration = Duration::from_secs(10);

fn lock() -> MutexGuard<'static, Pool> {
    let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let process = current_pid();
    if pool.process != process {
        // In a forked child, the tasks and the threads are those of the parent.
        *pool = Pool { process, tasks: VecDeque::new(), idle: 0 };
    }
    pool
}

/// Calls the callbacks in order on a thread of this module.
pub(crate) fn run(task: Task) {
    let mut pool = lock();
    pool.tasks.push_back(task);
    if pool.tasks.len() <= pool.idle {
        drop(pool);
        return ADDED.notify_one();
    }
    drop(pool);
    let started = std::thread::Builder::new().name("unisono-callback".to_owned()).spawn(work);
    if started.is_err() {
        // No thread can be had. A callback that waits may block this one; none would be worse.
        while let Some(task) = next() {
            call(task);
        }
    }
}

fn next() -> Option<Task> {
    lock().tasks.pop_front()
}

fn work() {
    loop {
        while let Some(task) = next() {
            call(task);
        }
        let mut pool = lock();
        if !pool.tasks.is_empty() {
            continue;
        }
        pool.idle += 1;
        let (mut pool, waited) =
            ADDED.wait_timeout(pool, IDLE_MAX).unwrap_or_else(|poisoned| poisoned.into_inner());
        pool.idle -= 1;
        if waited.timed_out() && pool.tasks.is_empty() {
            return;
        }
    }
}

/// Calls the callbacks, unless the interpreter is about to end.
fn call(task: Task) {
    Python::try_attach(|py| {
        for callback in task {
            if let Err(error) = callback.call0(py) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        }
    });
}
