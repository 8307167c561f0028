//! Signals that a process inherits as ignored.

use std::fs::read_to_string;

/// Returns those of `signals` that this process did not inherit as ignored.
///
/// `nohup` makes a program ignore `SIGHUP`, and a script makes its background jobs ignore `SIGINT`
/// and `SIGQUIT`. A handler for such a signal would end a program by a signal that it should
/// survive. Without `/proc`, no signal counts as ignored.
pub fn without_ignored(signals: &[i32]) -> Vec<i32> {
    let ignored = read_to_string("/proc/self/status").map_or(0, |status| ignored_in(&status));
    signals.iter().copied().filter(|signal| ignored & mask(*signal) == 0).collect()
}

/// Returns the mask of ignored signals in a process's status.
pub(crate) fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn mask(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001003\nSigCgt:\t0000000000000440\n";
        let (hangup, interrupt, quit, pipe) = (1, 2, 3, 13);
        assert_eq!(ignored_in(status), mask(hangup) | mask(interrupt) | mask(pipe));
        assert_eq!((ignored_in(status) & mask(quit), ignored_in("Name:\tx\n")), (0, 0));
    }

    #[test]
    fn without_ignored_leaves_signals_with_defaults() {
        // Rust's runtime ignores SIGPIPE, and nothing ignores SIGUSR1.
        assert_eq!(without_ignored(&[10, 13]), [10]);
    }
}
