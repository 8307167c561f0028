//! Stream sockets of both families, with deadlines.

mod options;

use crate::secure::noise::SessionKeys;
use crate::secure::record::RecordLayer;
use crate::sys::descriptors::off_stdio;
use crate::sys::socket_calls::{is_hung_up, recv_now, send_now, unacked_bytes};
use crate::{Error, Result, sync};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, connect, sendmsg, socket_with,
    sockopt,
};
use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// A TCP connection, with its record layer if it is encrypted.
    Tcp(TcpStream, Option<Box<RecordLayer>>),
    /// A Unix socket, within a host.
    Unix(UnixStream),
}

impl Stream {
    /// Connects over TCP, with `TCP_NODELAY` set.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, and [`Error::System`] with the address.
    pub fn connect(address: SocketAddr, deadline: Instant) -> Result<Self> {
        let stream = Self::start_connect(address)?;
        stream.wait(PollFlags::OUT, deadline).map_err(|error| match error {
            Error::Timeout { .. } => Error::Timeout { what: format!("no answer from {address}") },
            other => other,
        })?;
        stream.is_connected(address)?;
        Ok(stream)
    }

    /// Starts to connect over TCP, and does not wait.
    ///
    /// # Errors
    /// [`Error::System`] with the address.
    pub(crate) fn start_connect(address: SocketAddr) -> Result<Self> {
        let failed = |source| Error::System { what: format!("cannot connect to {address}"), source };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(Into::into);
        let socket = socket.and_then(off_stdio).map_err(failed)?;
        // The system may choose a port for this end on which a rank will want to listen.
        sockopt::set_socket_reuseaddr(&socket, true).map_err(|errno| failed(errno.into()))?;
        match connect(&socket, &address) {
            // The kernel goes on with a connection whose call was interrupted.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).map_err(failed)?;
        Ok(stream.into())
    }

    /// Returns true once the connection to `address` that was started is established.
    ///
    /// # Errors
    /// [`Error::System`] with the reason why it cannot be established.
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
        // A socket whose connection failed is writable as well, and its error tells the difference.
        sockopt::socket_error(self).and_then(|ended| ended).map_err(failed)?;
        match self.is_connected_to_itself() {
            true => Err(failed(Errno::CONNREFUSED)),
            false => Ok(true),
        }
    }

    /// Returns true if both ends of a TCP connection are this socket.
    ///
    /// A socket that connects to a port of this host on which nobody listens may be given that very
    /// port as its own, and then meets itself. For its user, the connection is refused.
    fn is_connected_to_itself(&self) -> bool {
        let ends = self.tcp().map(|stream| (stream.local_addr().ok(), stream.peer_addr().ok()));
        ends.is_some_and(|(local, peer)| local.is_some() && local == peer)
    }

    /// Returns the socket of a TCP connection.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(stream, _) => Some(stream),
            Stream::Unix(_) => None,
        }
    }

    /// Describes the other end, for errors.
    pub fn peer(&self) -> String {
        match self.tcp().map(TcpStream::peer_addr) {
            Some(address) => address.map_or_else(|_| "a peer".to_owned(), |address| address.to_string()),
            None => "a process of this host".to_owned(),
        }
    }

    /// Sends and receives all further bytes in records sealed with `keys`.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for a Unix socket.
    pub(crate) fn enable_encryption(&mut self, keys: SessionKeys) -> Result<()> {
        match self {
            Stream::Tcp(_, seal) => *seal = Some(Box::new(RecordLayer::new(keys))),
            Stream::Unix(_) => return Err(Error::InvalidUsage("a local socket is not encrypted".to_owned())),
        }
        Ok(())
    }

    /// Returns the record layer of an encrypted connection.
    pub(crate) fn record_layer(&self) -> Option<&RecordLayer> {
        match self {
            Stream::Tcp(_, seal) => seal.as_deref(),
            Stream::Unix(_) => None,
        }
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::ConnectionClosed`] at an early end, and
    /// [`Error::System`].
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

    /// Appends available bytes to `bytes` up to a length of `wanted`, and returns true if that is
    /// reached.
    ///
    /// # Errors
    /// [`Error::ConnectionClosed`] at an early end, and [`Error::System`].
    pub fn read_some(&mut self, bytes: &mut Vec<u8>, wanted: usize) -> Result<bool> {
        while bytes.len() < wanted {
            let filled = bytes.len();
            bytes.resize(wanted, 0);
            let read = self.read_more(&mut bytes[filled..]);
            // The length is corrected before an error returns, so that it never counts bytes that
            // have not arrived.
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
    /// The errors of [`Stream::read_exact`].
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

    /// Writes a few bytes without waiting. A connection that awaits an answer always has room for
    /// them.
    ///
    /// # Errors
    /// The errors of [`Stream::read_exact`], with [`Error::Timeout`] if there is no room.
    pub fn write_now(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes, Instant::now())
    }

    /// Waits until the socket is ready for `what`, or closed.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, and [`Error::System`].
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

    /// Reads available bytes, at least one; `None` if there are none.
    fn read_more(&mut self, bytes: &mut [u8]) -> Result<Option<usize>> {
        match self.read(bytes) {
            Ok(Some(0)) => Err(Error::ConnectionClosed { peer: self.peer() }),
            Ok(read) => Ok(read),
            Err(error) => Err(self.failed("cannot read from", error)),
        }
    }

    /// Reads available bytes without waiting. The result is `None` if there are none, and zero at
    /// the end.
    ///
    /// # Errors
    /// The error of the system. Its kind is [`InvalidData`](std::io::ErrorKind::InvalidData) if an
    /// encrypted connection was tampered with.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<Option<usize>> {
        if let Stream::Tcp(stream, Some(seal)) = self {
            return seal.read(stream, bytes);
        }
        recv_now(&*self, bytes)
    }

    /// Writes as many bytes as there is room for, and returns their number.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Stream::Tcp(stream, Some(seal)) = self {
            return seal.write(stream, &[IoSlice::new(bytes)]);
        }
        send_now(&*self, bytes)
    }

    /// Writes several slices as [`Stream::write`] writes one.
    ///
    /// # Errors
    /// The error of the system.
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

    /// Hands buffered records to the kernel, and returns true if it has taken all that was written.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn flush(&mut self) -> std::io::Result<bool> {
        match self {
            Stream::Tcp(stream, Some(seal)) => seal.flush(stream),
            _ => Ok(true),
        }
    }

    /// Waits until the peer's kernel has confirmed all that was written. Data there survives the
    /// end of this process, and a reset of the connection. Returns false if it has not at the
    /// deadline.
    ///
    /// A connection that the peer has closed too carries nothing more.
    pub(crate) fn drain(&self, deadline: sync::Instant) -> bool {
        // Bytes written to a local socket are with the peer already.
        let Some(socket) = self.tcp() else { return true };
        while unacked_bytes(socket) > 0 && !is_hung_up(socket) {
            if sync::Instant::now() >= deadline {
                return false;
            }
            sync::thread::sleep(DRAIN_PAUSE);
        }
        true
    }

    /// Lets reads take more bytes from the kernel than they return.
    ///
    /// This suits a caller that polls reads, and does not wait for the kernel to report more bytes.
    pub(crate) fn enable_read_ahead(&mut self) {
        if let Stream::Tcp(_, Some(seal)) = self {
            seal.enable_read_ahead();
        }
    }

    /// Makes the socket non-blocking.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn set_nonblocking(&self) -> Result<()> {
        let ended = match self {
            Stream::Tcp(stream, _) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        };
        ended.map_err(|source| self.failed("cannot set up", source))
    }

    /// Duplicates the descriptor of the socket.
    ///
    /// # Errors
    /// [`Error::System`] if the process has no descriptor left.
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

/// Time between two looks at the confirmations of a peer.
const DRAIN_PAUSE: Duration = Duration::from_micros(100);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use rustix::net::{bind, getsockname};
    use std::net::Ipv4Addr;

    #[test]
    fn socket_connected_to_itself_counts_as_refused() {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        connect(&socket, &address).unwrap();
        let stream = Stream::from(TcpStream::from(socket));
        let error = stream.is_connected(address).unwrap_err();
        let Error::System { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
