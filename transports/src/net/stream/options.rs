//! Options of sockets: keepalive and congestion control.

use crate::Result;
use crate::net::stream::Stream;
use rustix::net::sockopt;
use std::time::Duration;

impl Stream {
    /// Ends the connection when the peer's host has answered nothing for `after`.
    ///
    /// The kernel sends keepalive probes while there is no data. The error then satisfies
    /// [`is_unreachable`](crate::sys::socket_calls::is_unreachable). A peer that is busy or stopped
    /// has a kernel that answers. If such a peer reads nothing, the caller must not send more than
    /// the sockets have room for, because that ends the connection too. A time of zero restores the
    /// default of the kernel, about 15 minutes.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub fn set_keepalive(&self, after: Duration) -> Result<()> {
        let Stream::Tcp(stream, _) = self else { return Ok(()) };
        let every = Duration::from_secs((after.as_secs() / KEEPALIVE_PROBES).clamp(1, KEEPALIVE_SECONDS_MAX));
        // The kernel takes no more.
        let millis = after.as_millis().min(i32::MAX as u128) as u32;
        sockopt::set_tcp_keepidle(stream, every)
            .and_then(|()| sockopt::set_tcp_keepintvl(stream, every))
            .and_then(|()| sockopt::set_tcp_user_timeout(stream, millis))
            .and_then(|()| sockopt::set_socket_keepalive(stream, !after.is_zero()))
            .map_err(|errno| self.failed("cannot watch over", errno.into()))
    }

    /// Selects the congestion control `reno` for a connection within a host, where there is no
    /// congestion.
    ///
    /// Every process may choose `reno`. Other algorithms pace what they send. Some also keep a
    /// small window for long after segments were reordered, which happens between cores. If the
    /// kernel refuses, nothing changes.
    pub(crate) fn tune_local_congestion_control(&self) {
        let Stream::Tcp(stream, _) = self else { return };
        if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
            && local.ip() == peer.ip()
            && let Err(error) = sockopt::set_tcp_congestion(stream, "reno")
        {
            tracing::debug!(%error, "kept the default congestion control");
        }
    }
}

/// Keepalive probes within the timeout.
const KEEPALIVE_PROBES: u64 = 6;
/// Longest interval between probes that the kernel takes, in seconds.
const KEEPALIVE_SECONDS_MAX: u64 = 32_767;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn local_connection_uses_reno() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let remote = Stream::from(listener.accept().unwrap().0);
        remote.tune_local_congestion_control();
        assert_eq!(sockopt::tcp_congestion(remote.tcp().unwrap()).unwrap(), "reno");
        Stream::from(local).tune_local_congestion_control();
    }
}
