//! Sockets within a host that leave no file behind, and memory passed over them.
//!
//! Names are in Linux's abstract namespace, so they vanish with the process. They carry no
//! permissions either. So the kernel is asked for every peer's user, and every connection is
//! authenticated like any other.

use crate::net::stream::Stream;
use crate::sys::descriptors::off_stdio;
use crate::sys::random::random_hex;
use crate::sys::user;
use crate::{Error, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Listens under a random name, and returns it with the socket.
///
/// # Errors
/// Returns the system's error.
pub fn listen() -> Result<(UnixListener, String)> {
    let name = random_hex::<12>()?;
    Ok((listen_as(&name)?, name))
}

/// Listens under this name.
///
/// # Errors
/// Returns the system's error, for example if another process listens under it.
pub fn listen_as(name: &str) -> Result<UnixListener> {
    let listener = address(name).and_then(|address| UnixListener::bind_addr(&address)).and_then(off_stdio);
    listener.map_err(|source| failed("cannot listen on a local socket", source))
}

/// Connects to a name of this host.
///
/// # Errors
/// Returns [`Error::AuthFailed`] if the peer is another user, or the system's error.
pub fn connect(name: &str) -> Result<Stream> {
    let stream = address(name).and_then(|address| UnixStream::connect_addr(&address)).and_then(off_stdio);
    let stream = stream.map_err(|source| failed("cannot connect to a local socket", source))?;
    check_same_user(&stream)?;
    Ok(Stream::Unix(stream))
}

/// Fails unless the process at the other end belongs to this user.
///
/// The process number is not compared, because the kernel reports a process of another PID
/// namespace as process 0, which is no error. Containers of one pod share a network namespace, but
/// have own process numbers.
///
/// # Errors
/// [`Error::AuthFailed`] for another user, or the system's error.
pub fn check_same_user(stream: &UnixStream) -> Result<()> {
    let unknown = |source| failed("cannot read the user of a local peer", source);
    let peer = peer_uid(stream).map_err(unknown)?;
    if user::is_own(peer).map_err(unknown)? {
        return Ok(());
    }
    let own_uid = rustix::process::geteuid().as_raw();
    let what = match peer == own_uid {
        true => {
            format!("it belongs to user {peer}, as all users do that have no number in this user namespace")
        }
        false => format!("it belongs to user {peer} and this process to user {own_uid}"),
    };
    Err(Error::AuthFailed { peer: "a process of this host".to_owned(), what })
}

/// Returns the user of the process that connected or listens at the other end.
fn peer_uid(stream: &UnixStream) -> std::io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the whole call. The kernel writes at most `bytes` bytes
    // into `peer`, which is that long and for which every value is valid.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    match failed {
        0 => Ok(peer.uid),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Passes descriptors to the peer.
///
/// # Errors
/// Returns [`Error::Timeout`], or the system's error.
pub fn send_fds(stream: &Stream, fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<()> {
    for batch in fds.chunks(FDS_PER_MESSAGE) {
        while !send_batch(stream, batch)? {
            // A user may have only so many descriptors in flight. The peers will receive theirs
            // soon.
            std::thread::sleep(RETRY_AFTER);
            if Instant::now() >= deadline {
                return Err(Error::Timeout { what: format!("{} takes no descriptors", stream.peer()) });
            }
        }
    }
    Ok(())
}

/// Returns true if there was room for the descriptors.
fn send_batch(stream: &Stream, fds: &[BorrowedFd<'_>]) -> Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(stream, &[IoSlice::new(&[FD_MARK])], &mut control, flags) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS) => Ok(false),
        Err(errno) => Err(failed("cannot pass descriptors", errno.into())),
    }
}

/// Receives exactly `count` descriptors from the peer.
///
/// # Errors
/// Returns [`Error::Timeout`], [`Error::AuthFailed`] if anything else arrives, or the system's
/// error.
pub fn recv_fds(stream: &Stream, count: usize, deadline: Instant) -> Result<Vec<OwnedFd>> {
    let mut received = Vec::with_capacity(count);
    while received.len() < count {
        stream.wait(PollFlags::IN, deadline)?;
        let batch = recv_batch(stream)?;
        if batch.is_empty() || received.len() + batch.len() > count {
            let what = "it sent something else than its memory".to_owned();
            return Err(Error::AuthFailed { peer: stream.peer(), what });
        }
        received.extend(batch);
    }
    Ok(received)
}

/// Returns the descriptors that came with one mark, or nothing if the byte is no mark.
fn recv_batch(stream: &Stream) -> Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut mark)], &mut control, flags)
        .map_err(|source| failed("cannot receive descriptors", source.into()))?;
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // The kernel has closed the descriptors for which there was no room.
        return Err(failed("cannot receive descriptors", rustix::io::Errno::MFILE.into()));
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().map(off_stdio).collect::<std::io::Result<_>>();
    let fds = fds.map_err(|source| failed("cannot receive descriptors", source))?;
    if received.bytes == 0 {
        let source = std::io::ErrorKind::ConnectionAborted.into();
        return Err(failed(
            "the other process closed the connection before it had passed its memory",
            source,
        ));
    }
    Ok(if mark == [FD_MARK] { fds } else { Vec::new() })
}

fn address(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("unisono-{name}"))
}

fn failed(what: &str, source: std::io::Error) -> Error {
    Error::System { what: what.to_owned(), source }
}

/// The byte that carries descriptors.
const FD_MARK: u8 = b'm';
/// Descriptors in one message. The kernel allows 253.
const FDS_PER_MESSAGE: usize = 128;
const RETRY_AFTER: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::segment::Segment;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(300)
    }

    #[test]
    fn passed_memory_is_shared() {
        let (first, second) = UnixStream::pair().unwrap();
        let (local, remote) = (Stream::Unix(first), Stream::Unix(second));
        let segment = Segment::create(8192).unwrap();
        send_fds(&local, &[segment.fd().unwrap()], soon()).unwrap();
        let fd = recv_fds(&remote, 1, soon()).unwrap().remove(0);
        let theirs = Segment::attach(fd, 8192).unwrap();
        // SAFETY: both mappings are alive and at least eight bytes long, and there is one thread.
        unsafe { segment.at(100, 1).write(42) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.at(100, 1).read() }, 42);
    }

    #[test]
    fn attach_checks_size_and_seals() {
        let fd = |segment: &Segment| segment.fd().unwrap().try_clone_to_owned().unwrap();
        let segment = Segment::create(4096).unwrap();
        assert!(Segment::attach(fd(&segment), 8192).is_err());
        let plain = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        assert!(Segment::attach(plain, 4096).is_err());
    }

    #[test]
    fn many_fds_pass_in_order() {
        let (first, second) = UnixStream::pair().unwrap();
        let (local, remote) = (Stream::Unix(first), Stream::Unix(second));
        let count = 2 * FDS_PER_MESSAGE + 3;
        let files: Vec<Segment> = (1..=count).map(|index| Segment::create(index * 8).unwrap()).collect();
        let fds: Vec<_> = files.iter().filter_map(Segment::fd).collect();
        send_fds(&local, &fds, soon()).unwrap();
        for (index, fd) in recv_fds(&remote, count, soon()).unwrap().into_iter().enumerate() {
            assert!(Segment::attach(fd, (index + 1) * 8).is_ok(), "descriptor {index}");
        }
    }

    #[test]
    fn plain_byte_is_not_an_fd() {
        let (first, second) = UnixStream::pair().unwrap();
        let (mut local, remote) = (Stream::Unix(first), Stream::Unix(second));
        local.write_all(b"m", soon()).unwrap();
        assert!(matches!(recv_fds(&remote, 1, soon()), Err(Error::AuthFailed { .. })));
        assert!(matches!(
            recv_fds(&remote, 1, Instant::now() + Duration::from_millis(50)),
            Err(Error::Timeout { .. })
        ));
    }
}
