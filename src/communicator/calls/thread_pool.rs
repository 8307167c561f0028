//! Threads for started operations. A communicator has a thread only while it has operations to run.
//!
//! The threads belong to the process. A thread that has nothing to do for a while ends, so idle
//! communicators cost no threads. Each communicator with operations under way has a separate
//! thread, because an operation may wait for peers that first run an operation of another
//! communicator.

#[cfg(not(all(test, shuttle)))]
pub(in crate::communicator) use pooled::execute;

/// Work for a thread.
pub(in crate::communicator) type Job = Box<dyn FnOnce() + Send>;

/// Runs `job` on a thread of its own, which models can follow.
///
/// # Errors
/// The job, if no thread could be started.
#[cfg(all(test, shuttle))]
pub(in crate::communicator) fn execute(job: Job) -> Result<(), Job> {
    drop(crate::sync::thread::spawn(job));
    Ok(())
}

#[cfg(not(all(test, shuttle)))]
mod pooled {
    use super::Job;
    use std::collections::VecDeque;
    use std::sync::{Condvar, Mutex, MutexGuard};
    use std::thread;
    use std::time::Duration;
    use unisono_transports::sys::{fork_guard, timer_slack};

    /// The jobs that no thread has taken, and the threads that wait for jobs.
    struct Pool {
        jobs: VecDeque<Job>,
        idle: usize,
        /// The process whose threads these are.
        process: u64,
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool { jobs: VecDeque::new(), idle: 0, process: 0 });
    static JOB_ADDED: Condvar = Condvar::new();

    fn lock() -> MutexGuard<'static, Pool> {
        POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs `job` on an idle thread of the process, or on a new one.
    ///
    /// # Errors
    /// The job, if no thread could be started.
    pub(in crate::communicator) fn execute(job: Job) -> Result<(), Job> {
        let mut pool = lock();
        if pool.process != fork_guard::current_pid() {
            // After a fork, the threads are those of the parent.
            *pool = Pool { jobs: VecDeque::new(), idle: 0, process: fork_guard::current_pid() };
        }
        // Each job in the queue is about to take an idle thread, and a job without a thread of its
        // own could keep its peers waiting.
        if pool.idle > pool.jobs.len() {
            pool.jobs.push_back(job);
            JOB_ADDED.notify_one();
            return Ok(());
        }
        pool.jobs.push_back(job);
        if thread::Builder::new().name("unisono-worker".to_owned()).spawn(run).is_err() {
            return pool.jobs.pop_back().map_or(Ok(()), Err);
        }
        Ok(())
    }

    fn run() {
        // The sleeps of a waiting operation are short, and the system must not round them up.
        timer_slack::minimize();
        let mut pool = lock();
        loop {
            if let Some(job) = pool.jobs.pop_front() {
                drop(pool);
                job();
                pool = lock();
                continue;
            }
            pool.idle += 1;
            let (awake, waited) =
                JOB_ADDED.wait_timeout(pool, IDLE_TIME).unwrap_or_else(|poisoned| poisoned.into_inner());
            pool = awake;
            pool.idle -= 1;
            if waited.timed_out() && pool.jobs.is_empty() {
                return;
            }
        }
    }

    /// Time without jobs after which a thread ends.
    const IDLE_TIME: Duration = Duration::from_secs(5);
}
