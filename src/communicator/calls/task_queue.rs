//! Started operations: their queue, and the threads that run them.
//!
//! A thread of the library runs the operations of a communicator one after the other. A caller that
//! waits for an operation before that thread has begun runs it itself.

use crate::communicator::calls::op_queue::Ticket;
use crate::communicator::calls::thread_pool;
use crate::communicator::{BackgroundWait, Shared};
use crate::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// A started operation.
pub(in crate::communicator) type Task = Box<dyn FnOnce() + Send>;

/// The system has no room for one more thread.
#[derive(Debug)]
pub(in crate::communicator) struct ThreadRefused;

/// The started operations of one communicator that have not run, in order.
#[derive(Default)]
pub(in crate::communicator) struct TaskQueue(Mutex<PendingTasks>);

#[derive(Default)]
struct PendingTasks {
    list: VecDeque<(Ticket, Task)>,
    runner: Runner,
    /// Threads of callers that run an operation for which they wait.
    helpers: usize,
}

/// The thread of the library that runs the operations.
#[derive(Clone, Copy, Default, PartialEq)]
enum Runner {
    /// There is none.
    #[default]
    Absent,
    /// A thread was told to run the operations, but has not begun.
    Called,
    /// A thread runs them.
    Running,
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, PendingTasks> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Queues `task` after all earlier calls, and lets a thread of the library run it. Returns its
    /// position among the calls.
    ///
    /// # Errors
    /// No thread could be started. The task is dropped, and its turn has passed.
    pub(in crate::communicator) fn start(shared: &Arc<Shared>, task: Task) -> Result<u64, ThreadRefused> {
        // The lock is taken before the ticket, so that the list has the order of the tickets.
        let mut pending = shared.tasks.lock();
        let ticket = shared.op_queue.take_ticket();
        let position = ticket.position();
        pending.list.push_back((ticket, task));
        if pending.runner != Runner::Absent {
            return Ok(position);
        }
        pending.runner = Runner::Called;
        let (tasks, weak) = (Arc::clone(&shared.tasks), Arc::downgrade(shared));
        if thread_pool::execute(Box::new(move || tasks.run(&weak))).is_ok() {
            return Ok(position);
        }
        pending.runner = Runner::Absent;
        let refused = pending.list.pop_back();
        drop(pending);
        if let Some((ticket, _)) = refused {
            // A ticket that nobody uses would keep all later calls from their turns.
            drop(shared.op_queue.wait_for_turn(ticket));
        }
        Err(ThreadRefused)
    }

    /// Runs operations until none is left.
    ///
    /// Callers who wait for an operation may end their process when it is complete. So this thread
    /// holds the communicator without a handle.
    fn run(&self, shared: &Weak<Shared>) {
        loop {
            let mut pending = self.lock();
            pending.runner = Runner::Running;
            // An operation keeps the communicator, so without one there is no operation.
            let (Some(shared), Some((ticket, task))) = (shared.upgrade(), pending.list.pop_front()) else {
                pending.runner = Runner::Absent;
                return;
            };
            drop(pending);
            let _turn = shared.op_queue.wait_for_turn(ticket);
            let _background = BackgroundWait::begin(&shared);
            task();
        }
    }

    /// Runs operations on the thread of a caller that waits for the operation at `position`, until
    /// the thread of the library begins. Waiting for that thread would take longer than a small
    /// operation.
    ///
    /// Later operations are not run here, because peers may start them only after the caller has
    /// gone on.
    pub(in crate::communicator) fn help(&self, shared: &Shared, position: u64) {
        loop {
            let mut pending = self.lock();
            let is_due = pending.list.front().is_some_and(|(ticket, _)| ticket.position() <= position);
            if pending.runner == Runner::Running || !is_due {
                return;
            }
            let Some((ticket, task)) = pending.list.pop_front() else { return };
            pending.helpers += 1;
            drop(pending);
            let _helper = Helper(self);
            // The other thread may begin now. The tickets keep the order of the operations.
            // The caller does nothing else meanwhile, so the operation waits in the way of a
            // blocking call.
            let _turn = shared.op_queue.wait_for_turn(ticket);
            task();
        }
    }

    /// Returns true if started operations run, or wait for their turn.
    pub(in crate::communicator) fn is_running(&self) -> bool {
        let pending = self.lock();
        pending.runner == Runner::Running || !pending.list.is_empty() || pending.helpers > 0
    }
}

/// A caller that runs an operation. Dropped when the operation has ended, even by a panic of a
/// foreign waker.
struct Helper<'q>(&'q TaskQueue);

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.lock().helpers -= 1;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::Runner;
    use crate::communicator::Communicator;
    use std::thread;

    /// Returns a communicator whose started operations wait for a thread that has not begun.
    fn waiting() -> Communicator {
        let comm = Communicator::local(1).unwrap().remove(0);
        comm.shared.tasks.lock().runner = Runner::Called;
        comm
    }

    #[test]
    fn waiting_caller_runs_operations_that_have_not_begun() {
        let comm = waiting();
        let [first, second, third] = [1, 2, 3]
            .map(|number| comm.spawn(move |comm| comm.barrier().map(|()| (number, thread::current().id()))));
        assert_eq!(second.wait().unwrap(), (2, thread::current().id()));
        assert!(first.is_finished(), "operations run in order");
        assert!(!third.is_finished(), "nobody waits for it");
        comm.shared.tasks.lock().runner = Runner::Running;
        let other = thread::spawn({
            let (tasks, shared) = (comm.shared.tasks.clone(), std::sync::Arc::downgrade(&comm.shared));
            move || tasks.run(&shared)
        });
        assert_eq!(third.wait().unwrap(), (3, other.thread().id()));
        other.join().unwrap();
        assert!(!comm.shared.tasks.is_running());
    }

    #[test]
    fn wait_with_limit_leaves_operations_to_the_other_thread() {
        let comm = waiting();
        let work = comm.spawn(|_| Ok(thread::current().id()));
        let work = work.wait_timeout(std::time::Duration::from_millis(1)).unwrap_err();
        assert_eq!(work.wait().unwrap(), thread::current().id());
        comm.shared.tasks.lock().runner = Runner::Absent;
    }

    /// Peers may enter the later operation only after the caller has gone on.
    #[test]
    fn waiting_caller_leaves_later_operations() {
        let comm = waiting();
        let mut held = [0u32; 2];
        let later = comm
            .scope(|scope| {
                let [number, _] = &mut held;
                let first = scope.spawn(|_| {
                    *number = 1;
                    Ok(())
                });
                let later = comm.spawn(|_| Ok(thread::current().id()));
                first.wait()?;
                assert!(!later.is_finished(), "it ran in the wait for an earlier one");
                Ok(later)
            })
            .unwrap();
        assert_eq!(later.wait().unwrap(), thread::current().id());
        comm.shared.tasks.lock().runner = Runner::Absent;
    }
}
