//! Forked processes, for tests of operations that they must not do.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
}

/// Runs `body` in a child that is forked from this process. Returns its text, or `None` if it does
/// not end in time.
///
/// The child has this thread only, and must take no lock that another thread may have held. It runs
/// `body`, and ends without any destructor except those of `body`.
///
/// # Panics
/// Panics if the child cannot be made.
pub fn run_in_forked_child(body: impl FnOnce() -> String) -> Option<String> {
    let (mut here, mut there) = std::io::pipe().expect("a pipe");
    // SAFETY: the child has this thread only, and runs only `body`, which takes no lock that
    // another thread may have held. The allocator and the standard library's own locks are sound in
    // children.
    let child = unsafe { fork() };
    if child == 0 {
        let text = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| "it panicked".to_owned());
        let _ = there.write_all(text.as_bytes());
        // SAFETY: it ends this process and does nothing else.
        unsafe { _exit(0) };
    }
    drop(there);
    let child = Pid::from_raw(child).filter(|pid| pid.as_raw_nonzero().get() > 0).expect("a child");
    let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
    let said = poll(&mut [PollFd::new(&here, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0);
    if !said {
        let _ = kill_process(child, Signal::KILL);
    }
    let mut text = String::new();
    let _ = here.read_to_string(&mut text);
    let _ = waitpid(Some(child), WaitOptions::empty());
    said.then_some(text)
}
