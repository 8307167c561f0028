//! Sockets within a host that leave no file behind, and memory passed over them.
//!
//! Names are in Linux's abstract namespace: they vanish with the process. They
//! carry no permissions either, so every peer's user is asked of the kernel
//! and every connection is authenticated like any other.

use crate::auth::random;
use crate::socket::Stream;
use crate::{Error, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Instant;

/// Listens under a random name; returns it with the socket.
///
/// # Errors
/// The system's.
pub fn listen() -> Result<(UnixListener, String)> {
    let name: String = random::<12>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let listener = address(&name).and_then(|address| UnixListener::bind_addr(&address));
    Ok((listener.map_err(|source| failed("cannot listen on a local socket", source))?, name))
}

/// Connects to a name of this host.
///
/// # Errors
/// The system's; [`Error::Refused`] if the peer is another user.
pub fn dial(name: &str) -> Result<Stream> {
    let stream = address(name).and_then(|address| UnixStream::connect_addr(&address));
    let stream = stream.map_err(|source| failed("cannot connect to a local socket", source))?;
    same_user(&stream)?;
    Ok(Stream::Unix(stream))
}

/// Fails unless the process at the other end belongs to this user.
///
/// # Errors
/// [`Error::Refused`], the system's.
pub fn same_user(stream: &UnixStream) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|source| failed("cannot ask for the peer's user", source.into()))?;
    let own = rustix::process::geteuid();
    if peer.uid == own {
        return Ok(());
    }
    let what = format!("it belongs to user {} and this process to user {}", peer.uid.as_raw(), own.as_raw());
    Err(Error::Refused { peer: "a process of this host".to_owned(), what })
}

/// Passes a descriptor to the peer.
///
/// # Errors
/// The system's.
pub fn send_fd(stream: &Stream, fd: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(stream, &[IoSlice::new(&[FD_MARK])], &mut control, SendFlags::NOSIGNAL)
        .map_err(|source| failed("cannot pass shared memory", source.into()))?;
    Ok(())
}

/// Receives one descriptor from the peer.
///
/// # Errors
/// [`Error::Timeout`], [`Error::Refused`] if something else comes, the system's.
pub fn recv_fd(stream: &Stream, deadline: Instant) -> Result<OwnedFd> {
    let Stream::Unix(socket) = stream else {
        return Err(Error::Misuse("descriptors only pass over local sockets".to_owned()));
    };
    socket
        .set_read_timeout(Some(crate::socket::left(deadline)))
        .map_err(|source| failed("cannot set up a local socket", source))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut mark)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|source| failed("cannot receive shared memory", source.into()))?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    match fds.flatten().next() {
        Some(fd) if received.bytes == 1 && mark == [FD_MARK] => Ok(fd),
        _ => {
            let what = "it sent something else than its memory".to_owned();
            Err(Error::Refused { peer: stream.peer(), what })
        }
    }
}

fn address(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("unisono-{name}"))
}

fn failed(what: &str, source: std::io::Error) -> Error {
    Error::System { what: what.to_owned(), source }
}

/// The byte that a descriptor rides on.
const FD_MARK: u8 = b'm';

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use std::time::Duration;

    #[test]
    fn memory_passes_and_is_shared() {
        let (one, other) = UnixStream::pair().unwrap();
        let (near, far) = (Stream::Unix(one), Stream::Unix(other));
        let segment = Segment::create(8192).unwrap();
        send_fd(&near, segment.fd().unwrap()).unwrap();
        let fd = recv_fd(&far, Instant::now() + Duration::from_secs(1)).unwrap();
        let theirs = Segment::attach(fd, 8192).unwrap();
        // SAFETY: both mappings are alive and eight bytes long at least; one thread.
        unsafe { segment.at(100, 1).write(42) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.at(100, 1).read() }, 42);
    }

    #[test]
    fn memory_of_another_size_or_without_seals_is_refused() {
        let fd = |segment: &Segment| segment.fd().unwrap().try_clone_to_owned().unwrap();
        let segment = Segment::create(4096).unwrap();
        assert!(Segment::attach(fd(&segment), 8192).is_err());
        let plain = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        assert!(Segment::attach(plain, 4096).is_err());
    }

    #[test]
    fn a_plain_byte_is_no_memory() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut near, far) = (Stream::Unix(one), Stream::Unix(other));
        let soon = Instant::now() + Duration::from_millis(200);
        near.write_all(b"m", soon).unwrap();
        assert!(recv_fd(&far, soon).is_err());
        assert!(recv_fd(&far, Instant::now() + Duration::from_millis(50)).is_err());
    }
}
