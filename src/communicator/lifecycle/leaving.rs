//! The end of a communicator at one rank, which comes when its last handle is dropped or its
//! process ends.
//!
//! The thread that drops the last handle itself tells the other ranks that this rank leaves. So a
//! rank can end its process right after its last operation. Threads of the library refer to a
//! communicator without a handle, so they neither delay its end nor prevent it.
//!
//! Sends for which nobody waits go on without a handle. After the last of them, the background
//! thread tells the other ranks that this rank leaves. A process that ends waits [`EXIT_TIMEOUT`]
//! for such sends.

#[cfg(feature = "gpu")]
use crate::communicator::Communicator;
use crate::communicator::Shared;
use crate::communicator::calls::background;
use crate::engine::{DROPPED, Engine, ROUNDS_WITHOUT_CLOCK};
use crate::sync::{Instant, thread};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::Duration;
use unisono_transports::sys::{at_exit, fork_guard};

/// Is shared by all handles of a communicator, and by nothing else. When it is dropped, the
/// communicator ends.
pub(in crate::communicator) struct Ownership(Arc<Shared>);

/// The state of a communicator whose process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Left,
    /// A thread uses the engine.
    InUse,
    /// Messages or started operations are under way.
    UnderWay,
}

/// The communicators of this process.
static COMMUNICATORS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static PROCESS_IS_ENDING: AtomicBool = AtomicBool::new(false);

impl Ownership {
    /// Makes the communicator end when its last handle is dropped or the process ends.
    pub(in crate::communicator) fn new(shared: &Arc<Shared>) -> Self {
        let mut communicators = COMMUNICATORS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        communicators.retain(|shared| shared.strong_count() > 0);
        communicators.push(Arc::downgrade(shared));
        drop(communicators);
        at_exit::set_exit_hook(leave_all);
        Self(Arc::clone(shared))
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        let shared = &self.0;
        if shared.process != fork_guard::current_pid() {
            // A forked child must not tell the other ranks that it leaves, because its parent still
            // uses the communicator.
            return;
        }
        shared.ownerless.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        // If no handle is left, other threads use the engine only for moments. A thread that drops
        // the handle in a callback of a message uses the engine itself, and leaves when it is done.
        while !shared.try_leave() && !shared.engine_user.is_this_thread() && begun.elapsed() < ENGINE_TIMEOUT
        {
            thread::sleep(PAUSE);
        }
    }
}

impl Shared {
    /// Ends this rank's part if no handle is left.
    ///
    /// A thread that has used the engine without a handle calls this function afterwards. In the
    /// meantime, a callback of a message may have dropped the last handle, or a thread that found
    /// the engine in use.
    pub(in crate::communicator) fn leave_if_ownerless(self: &Arc<Self>) {
        if self.ownerless.load(Ordering::SeqCst) {
            self.try_leave();
        }
    }

    /// Ends this rank's part, or lets the background thread do so when all messages are sent.
    /// Returns false if the engine is in use.
    fn try_leave(self: &Arc<Self>) -> bool {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => {
                poisoned.into_inner().leave(DROPPED);
                return true;
            }
            Err(TryLockError::WouldBlock) => return false,
        };
        let _mark = self.engine_user.set();
        if !std::thread::panicking() && !self.is_simulated && has_unsent(&mut engine) {
            // The background thread tries again when the engine is free.
            *self.lingering() = Some(Arc::clone(self));
            if background::attend(self) {
                return true;
            }
            drop(self.lingering().take());
        }
        engine.leave(DROPPED);
        drop(self.lingering().take());
        true
    }

    /// Ends this rank's part because its process ends, unless messages or operations are under way.
    fn end_with_process(&self) -> Ending {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(_)) => return Ending::Left,
            Err(TryLockError::WouldBlock) => return Ending::InUse,
        };
        let _mark = self.engine_user.set();
        if has_unsent(&mut engine) || self.tasks.is_running() {
            return Ending::UnderWay;
        }
        engine.leave(PROCESS_ENDED);
        Ending::Left
    }

    /// Ends this rank's part although messages or operations are under way, and warns of those that
    /// are lost.
    fn end_at_deadline(&self) {
        if self.tasks.is_running() {
            return crate::log::warn_user(&format!(
                "rank {} of {} on {}: the process ends during an operation that was started and not waited for, so the \
                 other ranks are told that this one is gone. Wait for every handle before the process ends",
                self.rank, self.ranks, self.host
            ));
        }
        if let Ok(mut engine) = self.engine.try_lock() {
            let _mark = self.engine_user.set();
            engine.leave(PROCESS_ENDED);
        }
    }
}

#[cfg(feature = "gpu")]
impl Communicator {
    /// Makes a regular end of the process look like a failure to the other ranks. They may still
    /// use memory of its GPU, so they must learn that this rank is gone.
    pub(crate) fn leave_only_by_drop(&self) {
        self.shared.leaves_at_exit.store(false, Ordering::Relaxed);
    }
}

/// Moves messages, and returns true if some are still not sent.
fn has_unsent(engine: &mut Engine) -> bool {
    if !engine.has_left() && engine.has_messages() {
        engine.drive_messages(ROUNDS_WITHOUT_CLOCK);
    }
    engine.has_unsent_messages()
}

/// Returns true once the process has begun to end regularly.
pub(in crate::communicator) fn process_is_ending() -> bool {
    PROCESS_IS_ENDING.load(Ordering::Relaxed)
}

/// Ends all communicators of a process that ends regularly.
///
/// A process that ends with an error leaves nothing here, so its peers learn that it has failed.
fn leave_all(code: i32) {
    if code != 0 {
        return tell_failures();
    }
    PROCESS_IS_ENDING.store(true, Ordering::Relaxed);
    let (begun, process) = (Instant::now(), fork_guard::current_pid());
    let mut open = all_communicators(begun);
    open.retain(|shared| shared.process == process && shared.leaves_at_exit.load(Ordering::Relaxed));
    // If messages or operations were under way before, the wait goes on even if the background
    // thread uses the engine for a moment.
    let mut limit = ENGINE_EXIT_TIMEOUT;
    loop {
        open.retain(|shared| {
            let ending = shared.end_with_process();
            if ending == Ending::UnderWay || shared.tasks.is_running() {
                limit = EXIT_TIMEOUT;
            }
            // If an operation ends the process, that operation can never complete, so this does not
            // wait for it.
            ending != Ending::Left && !shared.is_used_by_this_thread()
        });
        if open.is_empty() || begun.elapsed() > limit {
            break;
        }
        thread::sleep(PAUSE);
    }
    open.iter().for_each(|shared| shared.end_at_deadline());
}

/// Tells the other ranks of a process that ends with an error which failure came before, if there
/// was one. They would otherwise take this process for the cause.
fn tell_failures() {
    let (begun, process) = (Instant::now(), fork_guard::current_pid());
    for shared in all_communicators(begun) {
        // A thread that uses the engine may never return it.
        if shared.process == process
            && let Ok(mut engine) = shared.engine.try_lock()
        {
            // Each communicator may have a peer that answers nothing, so all share one limit.
            engine.tell_failure(EXIT_TIMEOUT.saturating_sub(begun.elapsed()));
        }
    }
}

/// Returns the communicators of this process. Another thread may hold the lock of the list. This
/// thread may hold it, too, if it ends the process in a signal handler.
fn all_communicators(begun: Instant) -> Vec<Arc<Shared>> {
    loop {
        let communicators = match COMMUNICATORS.try_lock() {
            Ok(communicators) => communicators,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if begun.elapsed() > ENGINE_EXIT_TIMEOUT => return Vec::new(),
            Err(TryLockError::WouldBlock) => {
                thread::sleep(PAUSE);
                continue;
            }
        };
        return communicators.iter().filter_map(Weak::upgrade).collect();
    }
}

const PROCESS_ENDED: &str = "the process has ended";
/// Time for which a process that ends waits for sends and started operations, or for the news of a
/// failure to arrive.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a process that ends waits for an operation on another of its threads. Such an
/// operation may never end.
const ENGINE_EXIT_TIMEOUT: Duration = Duration::from_millis(100);
/// Time for which the drop of the last handle waits while another thread runs a callback.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(100);
