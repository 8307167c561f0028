//! Pending connections, the choice of the one to evict, and the log of rejected ones.

use crate::Error;
use crate::net::handshake::ServerHandshake;
use crate::net::stream::Stream;
use crate::secure::noise::KEYS_BYTES;
use crate::sync::Instant;
use crate::sys::rlimit::is_fd_exhausted;
use crate::tcp::connect::handshake_pool::{GRACE, HANDSHAKE_TIMEOUT};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

/// A connection that is not authenticated yet.
#[derive(Debug)]
pub(crate) struct PendingConn {
    pub(crate) stream: Stream,
    pub(crate) handshake: ServerHandshake,
    pub(crate) accepted_at: Instant,
    /// Address of the peer, without its port; `None` for a Unix socket.
    address: Option<SocketAddr>,
}

// With the received bytes, the keys of the connection, and room to grow.
const _: () = assert!(
    size_of::<PendingConn>() + KEYS_BYTES + 512 <= 4096,
    "a pending connection must cost less than 4 KiB"
);

impl PendingConn {
    pub(crate) fn new(stream: Stream) -> Self {
        let mut address = stream.tcp().and_then(|socket| socket.peer_addr().ok());
        address.iter_mut().for_each(|address| address.set_port(0));
        Self { stream, handshake: ServerHandshake::default(), accepted_at: Instant::now(), address }
    }

    /// Returns the time by which the handshake must be complete.
    pub(crate) fn deadline(&self) -> Instant {
        self.accepted_at + HANDSHAKE_TIMEOUT
    }

    /// Returns the error of a connection whose time is over.
    pub(crate) fn timeout_error(&self) -> Error {
        let what =
            format!("{} was not authenticated in {:?}", self.stream.peer(), self.accepted_at.elapsed());
        Error::Timeout { what }
    }
}

/// Returns the index of the connection to evict: the oldest one of the address with the most
/// connections, among those whose grace period is over. `pending` is in the order of arrival.
pub(crate) fn evict_candidate(pending: &[PendingConn], now: Instant) -> Option<usize> {
    let mut shares: HashMap<Option<SocketAddr>, usize> = HashMap::new();
    pending.iter().for_each(|conn| *shares.entry(conn.address).or_default() += 1);
    let grace_is_over = |conn: &PendingConn| now >= conn.accepted_at + GRACE;
    let candidates = pending.iter().enumerate().filter(|(_, conn)| grace_is_over(conn));
    candidates.rev().max_by_key(|(_, conn)| shares[&conn.address]).map(|(index, _)| index)
}

/// Returns true if the system lacks a resource to accept a connection.
pub(crate) fn is_resource_exhausted(error: &Error) -> bool {
    let Error::System { source, .. } = error else { return false };
    is_fd_exhausted(source) || matches!(Errno::from_io_error(source), Some(Errno::NOBUFS | Errno::NOMEM))
}

/// Rate limit of the log: the first few rejections of a time window, and the number of the others.
#[derive(Debug, Default)]
pub(crate) struct RejectLog {
    window_start: Option<Instant>,
    logged: usize,
    suppressed: usize,
    bootstrapped: bool,
}

impl RejectLog {
    /// Creates the log of a rank whose bootstrap is complete. A connection that closes during the
    /// handshake is then not worth a warning.
    pub(crate) fn after_bootstrap() -> Self {
        Self { bootstrapped: true, ..Self::default() }
    }

    /// Records a rejection, and returns true if it was logged as a warning.
    pub(crate) fn record(&mut self, error: &Error) -> bool {
        if self.bootstrapped && is_hang_up(error) {
            tracing::debug!(%error, "a connection closed during the handshake");
            return false;
        }
        let now = Instant::now();
        if self.window_start.is_none_or(|start| now - start >= LOG_WINDOW) {
            if self.suppressed > 0 {
                tracing::warn!("rejected {} more unauthenticated connections", self.suppressed);
            }
            *self = Self { window_start: Some(now), bootstrapped: self.bootstrapped, ..Self::default() };
        }
        if self.logged == LOGGED_MAX {
            self.suppressed += 1;
            return false;
        }
        self.logged += 1;
        tracing::warn!(%error, "rejected unauthenticated connection");
        true
    }
}

/// Returns true if the peer closed the connection. Ranks do so too: those that accept a connection
/// of the same peer meanwhile, and those that end.
fn is_hang_up(error: &Error) -> bool {
    match error {
        Error::ConnectionClosed { .. } => true,
        Error::System { source, .. } => source.kind() == ErrorKind::ConnectionReset,
        _ => false,
    }
}

const LOG_WINDOW: Duration = Duration::from_secs(10);
const LOGGED_MAX: usize = 8;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// Makes connections of this age, each with the last number of its address.
    fn pending(who: &[(u8, Duration)]) -> Vec<PendingConn> {
        let now = Instant::now();
        let conn = |&(address, age): &(u8, Duration)| PendingConn {
            accepted_at: now - age,
            address: Some((Ipv4Addr::new(192, 0, 2, address), 0).into()),
            ..PendingConn::new(Stream::Unix(UnixStream::pair().unwrap().0))
        };
        who.iter().map(conn).collect()
    }

    #[test]
    fn eviction_prefers_busiest_address_after_grace() {
        let (old, older, new) = (2 * GRACE, 3 * GRACE, GRACE / 2);
        let first = |who: &[(u8, Duration)]| evict_candidate(&pending(who), Instant::now());
        assert_eq!(first(&[(1, older), (2, older), (2, old)]), Some(1));
        assert_eq!(first(&[(1, older), (1, old), (2, old)]), Some(0));
        assert_eq!(first(&[(1, older), (2, new), (2, new)]), Some(0));
        assert_eq!(first(&[(2, new), (2, new)]), None);
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn rejections_are_rate_limited_in_log() {
        let mut log = RejectLog::default();
        let error = Error::Timeout { what: "silence".to_owned() };
        let said = (0..1000).filter(|_| log.record(&error)).count();
        assert_eq!((said, log.suppressed), (LOGGED_MAX, 1000 - LOGGED_MAX));
        log.window_start = Some(Instant::now() - LOG_WINDOW);
        assert!(log.record(&error) && log.suppressed == 0, "a new window begins");
    }

    #[test]
    fn hang_up_after_bootstrap_is_not_logged() {
        let reset = std::io::Error::from(ErrorKind::ConnectionReset);
        let errors = [
            Error::ConnectionClosed { peer: "somebody".to_owned() },
            Error::System { what: "cannot read".to_owned(), source: reset },
        ];
        let (mut met, mut meeting) = (RejectLog::after_bootstrap(), RejectLog::default());
        errors.iter().for_each(|error| assert!(!met.record(error) && meeting.record(error), "{error}"));
        assert_eq!((met.logged, met.suppressed), (0, 0));
        assert!(
            met.record(&Error::AuthFailed { peer: "somebody".to_owned(), what: "a wrong secret".to_owned() })
        );
    }

    #[test]
    fn pending_connection_records_address() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(PendingConn::new(stream.into()).address, Some((Ipv4Addr::LOCALHOST, 0).into()));
    }
}
