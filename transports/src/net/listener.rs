//! Listening sockets. Their ports stay reserved, and their queues are long enough for a whole job.

use crate::net::stream::Stream;
use crate::net::unix;
use crate::sys::descriptors::off_stdio;
use crate::{Error, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

/// A socket that listens and never blocks.
#[derive(Debug)]
pub enum Listener {
    /// Accepts connections from other hosts, or from this one.
    Tcp(TcpListener),
    /// Accepts connections from this host.
    Unix(UnixListener),
}

impl Listener {
    /// Listens for TCP. Port 0 selects any free port.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn tcp(address: SocketAddr) -> std::io::Result<Self> {
        let listener = off_stdio(TcpListener::bind(address)?)?;
        // The standard library's queue of 128 delays connections of larger jobs by a second each.
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        Ok(Listener::Tcp(listener))
    }

    /// Listens within the host under a random name, which is returned.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn unix() -> Result<(Self, String)> {
        let failed = |source| Error::System { what: "cannot set up a local socket".to_owned(), source };
        let (listener, name) = unix::listen()?;
        listen(&listener, BACKLOG).map_err(|errno| failed(errno.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok((Listener::Unix(listener), name))
    }

    /// Listens within the host under this name.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn unix_named(name: &str) -> Result<Self> {
        let failed = |source| Error::System { what: "cannot set up a local socket".to_owned(), source };
        let listener = unix::listen_as(name)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener::Unix(listener))
    }

    /// Returns the TCP address of the listener, if it has one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    /// Accepts the next connection, if one is waiting.
    ///
    /// # Errors
    /// Returns [`Error::AuthFailed`] for a connection of another user.
    /// Otherwise returns the system's error, such as too few descriptors.
    pub fn accept(&self) -> Result<Option<Stream>> {
        let failed = |source| Error::System { what: "cannot accept a connection".to_owned(), source };
        let accepted = match self {
            Listener::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                let stream = off_stdio(stream)?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }),
            Listener::Unix(listener) => {
                listener.accept().and_then(|(stream, _)| off_stdio(stream)).map(Stream::Unix)
            }
        };
        match accepted {
            Ok(stream) => {
                if let Stream::Unix(stream) = &stream {
                    unix::check_same_user(stream)?;
                }
                Ok(Some(stream))
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A port that the kernel assigns to no other socket while this value lives. Any process of the
/// host can still listen on the port if it requests it by number.
///
/// The kernel never assigns a port to which a socket is bound. This socket does not listen and
/// allows the reuse of its address, so it blocks no listener.
#[derive(Debug)]
pub struct PortReservation {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl PortReservation {
    /// Reserves a free port of the interface of `address`, whose own port is not read.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(mut address: SocketAddr) -> std::io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = off_stdio(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        address.set_port(0);
        bind(&socket, &address)?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Self { address, _socket: socket })
    }

    /// Returns the interface and the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Connections that may wait to be accepted. The system may allow fewer.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::has_ipv6;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};

    #[test]
    fn reserved_port_is_only_given_on_request() {
        let ipv6 = has_ipv6("a reserved port").then_some(IpAddr::V6(Ipv6Addr::LOCALHOST));
        for interface in [IpAddr::V4(Ipv4Addr::LOCALHOST)].into_iter().chain(ipv6) {
            let reservation = PortReservation::new((interface, 0).into()).unwrap();
            let address = reservation.address();
            assert!(TcpStream::connect(address).is_err(), "it listens");
            // A good part of the ports that the system assigns.
            let others: Vec<_> = (0..500).map(|_| TcpListener::bind((interface, 0)).unwrap()).collect();
            assert!(others.iter().all(|other| other.local_addr().unwrap() != address));
            let listener = Listener::tcp(address).unwrap();
            let _client = TcpStream::connect(address).unwrap();
            assert!(listener.accept().unwrap().is_some());
            assert!(Listener::tcp(address).is_err(), "two listeners at one address");
        }
    }

    #[test]
    fn backlog_exceeds_default() {
        let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.address().unwrap();
        // Nobody accepts meanwhile, so a connection beyond the backlog would wait for minutes.
        let clients: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
        let accepted = std::iter::from_fn(|| listener.accept().unwrap()).count();
        assert_eq!(accepted, clients.len());
    }
}
