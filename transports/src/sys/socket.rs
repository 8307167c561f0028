//! Stream sockets of both families, with deadlines.

use crate::secure::noise::SessionKeys;
use crate::secure::record::RecordLayer;
use crate::{Error, Result, sync};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, connect, recv, send,
    sendmsg, socket_with, sockopt,
};
use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// Between hosts, or within one; sealed where both ends have agreed on keys.
    Tcp(TcpStream, Option<Box<RecordLayer>>),
    /// Within a host.
    Unix(UnixStream),
}

impl Stream {
    /// Connects over TCP; small messages leave at once.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, the system's, with the address.
    pub fn connect(address: SocketAddr, deadline: Instant) -> Result<Self> {
        let stream = Self::start_connect(address)?;
        stream.wait(PollFlags::OUT, deadline).map_err(|error| match error {
            Error::Timeout { .. } => Error::Timeout { what: format!("no answer from {address}") },
            other => other,
        })?;
        stream.is_connected(address)?;
        Ok(stream)
    }

    /// Begins to connect over TCP, and does not wait for it.
    ///
    /// # Errors
    /// The system's, with the address.
    pub(crate) fn start_connect(address: SocketAddr) -> Result<Self> {
        let failed = |source| Error::System { what: format!("cannot connect to {address}"), source };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(family, SocketType::STREAM, flags, None).map_err(|errno| failed(errno.into()))?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).map_err(failed)?;
        Ok(stream.into())
    }

    /// Whether a connection that was begun, to `address`, has been made.
    ///
    /// # Errors
    /// The system's: why it cannot be made.
    pub(crate) fn is_connected(&self, address: SocketAddr) -> Result<bool> {
        match self.wait(PollFlags::OUT, Instant::now()) {
            Ok(()) => {}
            Err(Error::Timeout { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        let failed = |errno: Errno| Error::System {
            what: format!("cannot connect to {address}"),
            source: errno.into(),
        };
        sockopt::socket_error(self).and_then(|ended| ended).map_err(failed)?;
        Ok(true)
    }

    /// The socket, if this goes over TCP.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(stream, _) => Some(stream),
            Stream::Unix(_) => None,
        }
    }

    /// Who is at the other end, for errors.
    pub fn peer(&self) -> String {
        match self.tcp().map(TcpStream::peer_addr) {
            Some(address) => address.map_or_else(|_| "a peer".to_owned(), |address| address.to_string()),
            None => "a process of this host".to_owned(),
        }
    }

    /// From now on, everything travels in records sealed with these keys.
    ///
    /// # Errors
    /// [`Error::Misuse`] for what does not leave the host.
    pub(crate) fn enable_encryption(&mut self, keys: SessionKeys) -> Result<()> {
        match self {
            Stream::Tcp(_, seal) => *seal = Some(Box::new(RecordLayer::new(keys))),
            Stream::Unix(_) => return Err(Error::InvalidUsage("a local socket is not encrypted".to_owned())),
        }
        Ok(())
    }

    /// Its seal, if it has one.
    pub(crate) fn record_layer(&self) -> Option<&RecordLayer> {
        match self {
            Stream::Tcp(_, seal) => seal.as_deref(),
            Stream::Unix(_) => None,
        }
    }

    /// Reads exactly `bytes`.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Closed`] at an early end, the system's.
    pub fn read_exact(&mut self, bytes: &mut [u8], deadline: Instant) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.read_more(&mut bytes[filled..])? {
                Some(count) => filled += count,
                None => self.wait(PollFlags::IN, deadline)?,
            }
        }
        Ok(())
    }

    /// Appends what is here to `bytes`, until these are `wanted` long; whether they are.
    ///
    /// # Errors
    /// [`Error::Closed`] at an early end, the system's.
    pub fn read_some(&mut self, bytes: &mut Vec<u8>, wanted: usize) -> Result<bool> {
        while bytes.len() < wanted {
            let filled = bytes.len();
            bytes.resize(wanted, 0);
            let read = self.read_more(&mut bytes[filled..]);
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
        loop {
            let failed = |stream: &Self, error| stream.failed("cannot write to", error);
            written += self.write(&bytes[written..]).map_err(|error| failed(self, error))?;
            if written == bytes.len() && self.flush().map_err(|error| failed(self, error))? {
                return Ok(());
            }
            self.wait(PollFlags::OUT, deadline)?;
        }
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
            match sync::poll(&mut [PollFd::new(self, what)], left) {
                Ok(0) => return Err(Error::Timeout { what: format!("no answer from {}", self.peer()) }),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("cannot wait for", errno.into())),
            }
        }
    }

    /// Reads what is here, at least a byte: none if nothing is.
    fn read_more(&mut self, bytes: &mut [u8]) -> Result<Option<usize>> {
        match self.read(bytes) {
            Ok(Some(0)) => Err(Error::ConnectionClosed { peer: self.peer() }),
            Ok(read) => Ok(read),
            Err(error) => Err(self.failed("cannot read from", error)),
        }
    }

    /// Reads what is here without waiting: none if nothing is, zero bytes at the end.
    ///
    /// # Errors
    /// The system's; of kind [`InvalidData`](std::io::ErrorKind::InvalidData) if somebody has meddled with a sealed connection.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<Option<usize>> {
        if let Stream::Tcp(stream, Some(seal)) = self {
            return seal.read(stream, bytes);
        }
        recv_now(&*self, bytes)
    }

    /// Writes what there is room for; returns how much that was.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Stream::Tcp(stream, Some(seal)) = self {
            return seal.write(stream, &[IoSlice::new(bytes)]);
        }
        send_now(&*self, bytes)
    }

    /// As [`Stream::write`], from several places.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write_slices(&mut self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        if let Stream::Tcp(stream, Some(seal)) = self {
            return seal.write(stream, slices);
        }
        sync::step();
        loop {
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(&*self, slices, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Whether the kernel has all that was written; a sealed record may have been taken in part.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn flush(&mut self) -> std::io::Result<bool> {
        match self {
            Stream::Tcp(stream, Some(seal)) => seal.flush(stream),
            _ => Ok(true),
        }
    }

    /// From now on, reads may take more from the kernel than they return: for who asks again and again, and does not
    /// wait for the kernel to have more.
    pub(crate) fn enable_read_ahead(&mut self) {
        if let Stream::Tcp(_, Some(seal)) = self {
            seal.enable_read_ahead();
        }
    }

    /// From now on, reads and writes return at once.
    ///
    /// # Errors
    /// The system's.
    pub fn set_nonblocking(&self) -> Result<()> {
        let ended = match self {
            Stream::Tcp(stream, _) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        };
        ended.map_err(|source| self.failed("cannot set up", source))
    }

    /// Has the kernel end the connection when the peer's host has answered nothing for `after`, neither to what was
    /// sent nor, where nothing is, to questions of its own: then [`is_silence`] is the reason. A peer that is only busy,
    /// or stopped, has a kernel that answers; if it reads nothing, there must always be room for what is sent. Zero leaves
    /// it to the kernel again, which takes a quarter of an hour.
    ///
    /// # Errors
    /// The system's.
    pub fn set_keepalive(&self, after: Duration) -> Result<()> {
        let Stream::Tcp(stream, _) = self else { return Ok(()) };
        let every = Duration::from_secs((after.as_secs() / KEEPALIVE_PROBES).clamp(1, KEEPALIVE_SECONDS_MAX));
        // What the kernel takes, too.
        let millis = after.as_millis().min(i32::MAX as u128) as u32;
        sockopt::set_tcp_keepidle(stream, every)
            .and_then(|()| sockopt::set_tcp_keepintvl(stream, every))
            .and_then(|()| sockopt::set_tcp_user_timeout(stream, millis))
            .and_then(|()| sockopt::set_socket_keepalive(stream, !after.is_zero()))
            .map_err(|errno| self.failed("cannot watch over", errno.into()))
    }

    /// Within a host nothing is congested: there, the kernel is told to use the one congestion control that every process may
    /// choose. Others pace what they send, or go on for long with less under way after segments have overtaken each other, which
    /// they do between cores. What the kernel refuses stays as it is.
    pub(crate) fn tune_local_congestion_control(&self) {
        let Stream::Tcp(stream, _) = self else { return };
        if let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
            && own.ip() == peer.ip()
            && let Err(error) = sockopt::set_tcp_congestion(stream, "reno")
        {
            tracing::debug!(%error, "the kernel's congestion control stays");
        }
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
            Stream::Tcp(stream, _) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Stream::Tcp(stream, None)
    }
}

/// Receives what is here without waiting: none if nothing is, zero bytes at the end.
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

/// Sends what there is room for without waiting.
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

/// Whether this ended a connection whose other end was only not heard of any more.
pub fn is_unreachable(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN)
    )
}

/// Whether the other end, or whoever is there now, knows nothing of the connection any more.
pub fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

/// Questions in the time after which silence is an end.
const KEEPALIVE_PROBES: u64 = 6;
/// What the kernel takes.
const KEEPALIVE_SECONDS_MAX: u64 = 32_767;

/// The first of these that can be read, or is closed; none at the deadline.
///
/// # Errors
/// The system's.
pub fn first_ready(fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<Option<usize>> {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match sync::poll(&mut polled, left) {
        Ok(_) => Ok(polled.iter().position(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok(None),
        Err(errno) => Err(Error::System { what: "cannot wait".to_owned(), source: errno.into() }),
    }
}

#[cfg(all(test, not(shuttle), not(loom)))]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn local_connection_uses_reno() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = Stream::from(listener.accept().unwrap().0);
        far.tune_local_congestion_control();
        assert_eq!(sockopt::tcp_congestion(far.tcp().unwrap()).unwrap(), "reno");
        Stream::from(near).tune_local_congestion_control();
    }
}
