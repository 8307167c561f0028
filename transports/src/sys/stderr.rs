//! Lines on standard error that end no program.

use std::io::Write;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Prints a line on standard error, as far as somebody reads it.
///
/// The macros of the standard library panic if the reader has gone or the disk is full, and a panic
/// in a function that C calls ends the program. In a program that does not ignore `SIGPIPE`, the
/// write itself would end it. One write keeps lines of several threads and processes whole.
pub fn print_line(text: &str) {
    let line = format!("{text}\n");
    let _blocked = BlockedSigpipe::enter();
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Blocks `SIGPIPE` in this thread, and takes the one that a write caused.
struct BlockedSigpipe {
    mask_before: libc::sigset_t,
    was_pending: bool,
}

impl BlockedSigpipe {
    fn enter() -> Self {
        let was_pending = is_sigpipe_pending();
        let mut mask_before = empty_set();
        // SAFETY: both sets are initialized, and the call only changes the mask of this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe(), &mut mask_before) };
        Self { mask_before, was_pending }
    }
}

impl Drop for BlockedSigpipe {
    fn drop(&mut self) {
        // One that was there before is the program's own.
        if !self.was_pending && is_sigpipe_pending() {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the set and the time are initialized, and no information is asked for.
            while unsafe { libc::sigtimedwait(&sigpipe(), null_mut(), &at_once) } == -1
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
        // SAFETY: the set is the mask of this thread from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask_before, null_mut()) };
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn sigpipe() -> libc::sigset_t {
    let mut set = empty_set();
    // SAFETY: the set is initialized, and the signal exists.
    unsafe { libc::sigaddset(&mut set, libc::SIGPIPE) };
    set
}

fn is_sigpipe_pending() -> bool {
    let mut pending = empty_set();
    // SAFETY: the set is initialized.
    unsafe { libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, libc::SIGPIPE) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const ROLE: &str = "TEST_STDERR_ROLE";

    /// Returns true if this thread has blocked `SIGPIPE`.
    fn is_blocked() -> bool {
        let mut mask = empty_set();
        // SAFETY: without a new set, the call only tells the mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
        // SAFETY: the set is initialized.
        unsafe { libc::sigismember(&mask, libc::SIGPIPE) == 1 }
    }

    #[test]
    fn line_that_nobody_reads_ends_no_program() {
        if std::env::var_os(ROLE).is_some() {
            // As in a program that C starts: Rust's runtime ignores the signal.
            // SAFETY: the default is no handler of this program.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            print_line("text that nobody reads");
            assert!(!is_blocked() && !is_sigpipe_pending());
            // SAFETY: nothing in this program owns the descriptor, and no other thread opens one.
            unsafe { libc::close(2) };
            print_line("text without a file");
            std::process::exit(WELL);
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "sys::stderr::tests::line_that_nobody_reads_ends_no_program"]).env(ROLE, "1");
        let status = again.stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(WELL), "{status}");
    }

    const WELL: i32 = 42;
}
