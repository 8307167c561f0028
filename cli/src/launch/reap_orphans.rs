//! Reaping of orphans: processes that ranks started and that left their process groups.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::time::{Duration, Instant};

/// Kills and reaps all children of this process, and the children that become its own by that.
///
/// All ranks must have been reaped, and this process must be the subreaper of its descendants.
pub(super) fn kill_all(timeout: Duration) {
    let deadline = Instant::now() + timeout;
    loop {
        let children = children();
        if children.is_empty() || Instant::now() > deadline {
            return;
        }
        for child in children {
            // A child keeps its number until it is reaped below, so no other process can be hit.
            let _ = kill_process(child, Signal::KILL);
            let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the children of all threads of this process.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| numbers(&list)).collect()
}

/// Returns the processes in a list of numbers.
fn numbers(list: &str) -> Vec<Pid> {
    let numbers = list.split_whitespace().filter_map(|number| number.parse::<i32>().ok());
    // The negative of a number means a group of processes.
    numbers.filter(|&number| number > 0).filter_map(Pid::from_raw).collect()
}

/// Reads text as a list of processes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    assert!(numbers(text).iter().all(|process| process.as_raw_nonzero().get() > 0));
}

const POLL_INTERVAL: Duration = Duration::from_millis(2);
