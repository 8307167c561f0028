//! The background thread of the process, which moves messages while no thread waits for them.
//!
//! One thread serves all communicators. It sleeps while no message is under way. While no message
//! moves, it polls more and more rarely, because the user's computation needs its core.

use crate::communicator::Shared;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError, Weak};
use std::thread;
use std::time::Duration;
use unisono_transports::sys::{fork_guard, timer_slack};

/// The communicators that the thread has yet to add to its list.
struct Arrivals {
    list: Vec<Weak<Shared>>,
    /// The process in which the thread runs.
    process: Option<u64>,
    /// True while the thread waits for arrivals.
    asleep: bool,
}

static ARRIVALS: Mutex<Arrivals> = Mutex::new(Arrivals { list: Vec::new(), process: None, asleep: false });
static ARRIVED: Condvar = Condvar::new();

/// Lets the background thread move the messages of a communicator as long as it has messages.
/// Returns false if there is no thread.
pub(in crate::communicator) fn attend(shared: &Arc<Shared>) -> bool {
    if shared.attended.swap(true, Ordering::SeqCst) {
        return true;
    }
    let mut arrivals = lock();
    if arrivals.process != Some(shared.process) {
        // In a forked child, the list and the thread belong to the parent.
        arrivals.list.clear();
        let thread = thread::Builder::new().name("unisono-messages".to_owned()).spawn(run);
        // If there is no thread, messages move only while this rank waits.
        arrivals.process = thread.is_ok().then_some(shared.process);
        arrivals.asleep = false;
        if thread.is_err() {
            shared.attended.store(false, Ordering::SeqCst);
            return false;
        }
    }
    arrivals.list.push(Arc::downgrade(shared));
    if arrivals.asleep {
        ARRIVED.notify_one();
    }
    true
}

fn lock() -> MutexGuard<'static, Arrivals> {
    ARRIVALS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The state of a communicator after the thread has moved its messages.
#[derive(PartialEq, Eq)]
enum Look {
    Moved,
    Waits,
    Done,
}

fn run() {
    timer_slack::minimize();
    let mut attended: Vec<Weak<Shared>> = Vec::new();
    let mut pause = PAUSE_MIN;
    let mut idle_rounds = 0;
    while take_arrivals(&mut attended, idle_rounds > LINGER_ROUNDS) {
        let mut moved = false;
        attended.retain(|entry| {
            let look = look(entry);
            moved |= look == Look::Moved;
            look != Look::Done
        });
        idle_rounds = if attended.is_empty() { idle_rounds + 1 } else { 0 };
        if moved {
            pause = PAUSE_MIN;
            thread::yield_now();
        } else {
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Adds the communicators that have arrived. If `sleeps` is true and there is none, waits for one.
///
/// Returns false if none arrived for [`IDLE_TIME`], so that the thread ends.
fn take_arrivals(attended: &mut Vec<Weak<Shared>>, sleeps: bool) -> bool {
    let mut arrivals = lock();
    while sleeps && arrivals.list.is_empty() {
        arrivals.asleep = true;
        let waited = ARRIVED.wait_timeout(arrivals, IDLE_TIME);
        let (awake, waited) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        arrivals = awake;
        arrivals.asleep = false;
        if waited.timed_out() && arrivals.list.is_empty() {
            arrivals.process = None;
            return false;
        }
    }
    attended.append(&mut arrivals.list);
    true
}

/// Moves the messages of one communicator, unless a thread of the user moves them.
fn look(entry: &Weak<Shared>) -> Look {
    let Some(shared) = entry.upgrade() else {
        return Look::Done;
    };
    if shared.process != fork_guard::current_pid() {
        return Look::Done;
    }
    let mut engine = match shared.engine.try_lock() {
        Ok(engine) => engine,
        Err(TryLockError::WouldBlock) => return Look::Waits,
        Err(TryLockError::Poisoned(_)) => {
            // An operation has panicked, so nothing moves any more. The reference to itself must
            // not keep the communicator for ever.
            drop(shared.lingering().take());
            return Look::Done;
        }
    };
    let mark = shared.engine_user.set();
    let moved = engine.drive_messages(u32::MAX);
    let look = match engine.has_messages() {
        true if moved => Look::Moved,
        true => Look::Waits,
        false => Look::Done,
    };
    if look == Look::Done {
        // A message that is posted after this registers the communicator again.
        shared.attended.swap(false, Ordering::SeqCst);
    }
    drop(mark);
    drop(engine);
    shared.leave_if_ownerless();
    // A message may have been submitted after the look at the messages and before the mark was
    // cleared. Its thread has then left it to this one.
    let again = look == Look::Done && shared.submissions.is_filled();
    if again && !shared.attended.swap(true, Ordering::SeqCst) { Look::Waits } else { look }
}

const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Rounds without communicators before the thread waits to be woken. A message that has to wake it
/// takes some microseconds longer, while short pauses cost nothing.
const LINGER_ROUNDS: u32 = 50;
/// Time without messages after which the thread ends.
const IDLE_TIME: Duration = Duration::from_secs(10);
