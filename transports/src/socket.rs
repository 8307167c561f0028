//! Stream sockets of both families, with deadlines.

use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// Between hosts, or within one.
    Tcp(TcpStream),
    /// Within a host.
    Unix(UnixStream),
}

impl Stream {
    /// Connects over TCP; small messages leave at once.
    ///
    /// # Errors
    /// The system's, with the address.
    pub fn dial(address: SocketAddr, deadline: Instant) -> Result<Self> {
        let failed = |source| Error::System { what: format!("cannot connect to {address}"), source };
        let stream = TcpStream::connect_timeout(&address, left(deadline)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Stream::Tcp(stream))
    }

    /// Who is at the other end, for errors.
    pub fn peer(&self) -> String {
        match self {
            Stream::Tcp(stream) => {
                stream.peer_addr().map_or_else(|_| "a peer".to_owned(), |address| address.to_string())
            }
            Stream::Unix(_) => "a process of this host".to_owned(),
        }
    }

    /// Reads exactly `bytes`.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Refused`] at an early end, the system's.
    pub fn read_exact(&mut self, bytes: &mut [u8], deadline: Instant) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read_now(&mut bytes[filled..])? {
                Some(count) => filled += count,
                None => self.wait(PollFlags::IN, deadline)?,
            }
        }
        Ok(())
    }

    /// Appends what is here to `bytes`, until these are `wanted` long; whether they are.
    ///
    /// # Errors
    /// [`Error::Refused`] at an early end, the system's.
    pub fn read_some(&mut self, bytes: &mut Vec<u8>, wanted: usize) -> Result<bool> {
        while bytes.len() < wanted {
            let filled = bytes.len();
            bytes.resize(wanted, 0);
            let read = self.read_now(&mut bytes[filled..]);
            bytes.truncate(filled + read.as_ref().map_or(0, |read| read.unwrap_or(0)));
            if read?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As [`Stream::read_exact`].
    pub fn write_all(&mut self, bytes: &[u8], deadline: Instant) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match send(&*self, &bytes[written..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(errno) => return Err(self.failed("cannot write to", errno.into())),
            }
        }
        Ok(())
    }

    /// Writes all of a few bytes, for which there is always room in a connection that waits for an answer.
    ///
    /// # Errors
    /// As [`Stream::read_exact`]; [`Error::Timeout`] if there is no room.
    pub fn write_now(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes, Instant::now())
    }

    /// Waits until the socket is ready for `what`, or closed.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, the system's.
    pub fn wait(&self, what: PollFlags, deadline: Instant) -> Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(self, what)], Some(&timeout)) {
                Ok(0) => return Err(Error::Timeout { what: format!("no answer from {}", self.peer()) }),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("cannot wait for", errno.into())),
            }
        }
    }

    /// Reads what is here: none if nothing is.
    fn read_now(&mut self, bytes: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match recv(&*self, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    let what = "it closed the connection".to_owned();
                    return Err(Error::Refused { peer: self.peer(), what });
                }
                Ok((_, count)) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(self.failed("cannot read from", errno.into())),
            }
        }
    }

    /// From now on, reads and writes return at once.
    ///
    /// # Errors
    /// The system's.
    pub fn never_block(&self) -> Result<()> {
        let ended = match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        };
        ended.map_err(|source| self.failed("cannot set up", source))
    }

    /// A second descriptor of the same socket.
    ///
    /// # Errors
    /// The system's.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        self.as_fd().try_clone_to_owned().map_err(|source| self.failed("cannot duplicate", source))
    }

    fn failed(&self, what: &str, source: std::io::Error) -> Error {
        Error::System { what: format!("{what} {}", self.peer()), source }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// The first of these that can be read, or is closed; none at the deadline.
///
/// # Errors
/// The system's.
pub fn first_ready(fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<Option<usize>> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => Ok(polled.iter().position(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok(None),
        Err(errno) => Err(Error::System { what: "cannot wait".to_owned(), source: errno.into() }),
    }
}

/// Time left until `deadline`, never zero.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
