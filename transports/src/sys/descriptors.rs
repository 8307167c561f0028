//! Descriptors whose numbers are not those of standard input, output and error.

use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::{AsRawFd, OwnedFd};

/// Returns an open file under a number above the three standard descriptors.
///
/// If a program has closed standard descriptors, the next files that are opened get their numbers.
/// Text that the program prints after that would go into a socket or a shared segment.
///
/// # Errors
/// Returns the system's error, such as too few descriptors.
pub fn off_stdio<F: From<OwnedFd> + Into<OwnedFd> + AsRawFd>(file: F) -> std::io::Result<F> {
    if file.as_raw_fd() >= FIRST_FREE {
        return Ok(file);
    }
    let low: OwnedFd = file.into();
    Ok(fcntl_dupfd_cloexec(&low, FIRST_FREE)?.into())
}

/// The first number after standard error.
const FIRST_FREE: i32 = 3;
