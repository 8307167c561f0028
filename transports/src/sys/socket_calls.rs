//! System calls on sockets that never wait, and the meaning of their errors.

use crate::{Error, Result, sync};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Receives available bytes without waiting. The result is `None` if there are none, and zero at
/// the end.
pub(crate) fn recv_now(socket: impl AsFd, bytes: &mut [u8]) -> std::io::Result<Option<usize>> {
    sync::step();
    loop {
        match recv(&socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((_, count)) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends as many bytes as there is room for, and returns their number.
pub(crate) fn send_now(socket: impl AsFd, bytes: &[u8]) -> std::io::Result<usize> {
    sync::step();
    loop {
        match send(&socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns true once the connection is closed on both sides, so that it carries nothing more.
pub(crate) fn is_hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    sync::poll(&mut polled, Duration::ZERO).is_ok_and(|ready| ready > 0)
}

/// Returns the bytes written that the peer's kernel has not confirmed.
pub(crate) fn unacked_bytes(socket: impl AsFd) -> i32 {
    use rustix::ioctl::{Getter, ioctl};
    /// `TIOCOUTQ`, which on a TCP socket counts unacknowledged bytes (see tcp(7)).
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: this request writes one `int` and nothing else.
    let counted = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) };
    counted.unwrap_or(0)
}

/// Returns true if `error` ended a connection because the host of the peer did not answer.
pub fn is_unreachable(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN)
    )
}

/// Returns true if `error` is a reset: the host of the peer does not know the connection.
pub fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

/// Returns the index of the first descriptor that is readable or closed; `None` at the deadline.
///
/// # Errors
/// [`Error::System`].
pub fn first_ready(fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<Option<usize>> {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match sync::poll(&mut polled, left) {
        Ok(_) => Ok(polled.iter().position(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok(None),
        Err(errno) => Err(Error::System { what: "cannot wait".to_owned(), source: errno.into() }),
    }
}
