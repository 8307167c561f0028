//! Stream sockets of both families, with deadlines.

use crate::{Error, Result};
use std::io::{ErrorKind, Read, Write};
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
            self.set_timeout(deadline)?;
            let read = match self {
                Stream::Tcp(stream) => stream.read(&mut bytes[filled..]),
                Stream::Unix(stream) => stream.read(&mut bytes[filled..]),
            };
            match read {
                Ok(0) => {
                    return Err(Error::Refused {
                        peer: self.peer(),
                        what: "it closed the connection".to_owned(),
                    });
                }
                Ok(count) => filled += count,
                Err(error) if again(&error) => {}
                Err(source) => return Err(self.failed("cannot read from", source)),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As [`Stream::read_exact`].
    pub fn write_all(&mut self, bytes: &[u8], deadline: Instant) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            self.set_timeout(deadline)?;
            let wrote = match self {
                Stream::Tcp(stream) => stream.write(&bytes[written..]),
                Stream::Unix(stream) => stream.write(&bytes[written..]),
            };
            match wrote {
                Ok(count) => written += count,
                Err(error) if again(&error) => {}
                Err(source) => return Err(self.failed("cannot write to", source)),
            }
        }
        Ok(())
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

    /// Fails once the deadline has passed; else bounds the next system call by it.
    fn set_timeout(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Timeout { what: format!("no answer from {}", self.peer()) });
        }
        let ended = match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))
            }
        };
        ended.map_err(|source| self.failed("cannot set up", source))
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

/// Time left until `deadline`, never zero.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn again(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
