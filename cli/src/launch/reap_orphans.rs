//! Ends the processes that ranks started and that left their process groups.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::time::{Duration, Instant};

/// Kills and reaps every child that this process has by now, and those that come to it by that.
///
/// Only right once all ranks are reaped, in a process that is its descendants' reaper.
pub(super) fn kill_all(patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        let children = children();
        if children.is_empty() || Instant::now() > deadline {
            return;
        }
        for child in children {
            // A child keeps its number until it is reaped below, so this cannot hit a stranger.
            let _ = kill_process(child, Signal::KILL);
            let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| {
        let numbers = list.split_whitespace().filter_map(|number| number.parse().ok());
        numbers.filter_map(Pid::from_raw).collect::<Vec<_>>()
    };
    lists.flat_map(numbers).collect()
}

const POLL_INTERVAL: Duration = Duration::from_millis(2);
