//! Connections whose handshake is not complete. One thread serves all of them, so that a silent
//! connection delays no other.
//!
//! A pending connection costs a descriptor, its received bytes and its keys. It keeps its slot for
//! the grace period, and longer if no connection waits for the slot. Then the pool evicts the
//! oldest connection of the address with the most connections.
pub(crate) mod admission;

use crate::net::handshake::{HandshakeConfig, Hello};
use crate::net::listener::Listener;
use crate::net::stream::Stream;
use crate::sync::{self, Instant, thread};
use crate::sys::close_on_fork::CloseOnFork;
use crate::tcp::connect::handshake_pool::admission::{
    PendingConn, RejectLog, evict_candidate, is_resource_exhausted,
};
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Listeners, and the pending connections that they accepted.
#[derive(Debug)]
pub struct HandshakePool {
    _close_on_fork: Option<CloseOnFork>,
    listeners: Vec<Listener>,
    config: HandshakeConfig,
    pending: Vec<PendingConn>,
    reject_log: RejectLog,
}

/// Event of a pool.
#[derive(Debug)]
pub enum PoolEvent {
    /// A connection is authenticated, so its hello can be trusted.
    Authenticated(Stream, Hello),
    /// A connection was rejected, with the reason. The rejection is also logged, unless there are
    /// many.
    Unauthenticated(Error),
    /// The watched descriptor of this index is readable or closed.
    Ready(usize),
}

impl HandshakePool {
    /// Creates a pool of connections to `listeners`, authenticated by `config`.
    pub fn new(listeners: Vec<Listener>, config: HandshakeConfig) -> Self {
        Self {
            _close_on_fork: None,
            listeners,
            config,
            pending: Vec::new(),
            reject_log: RejectLog::default(),
        }
    }

    /// Creates the pool of a rank whose bootstrap is complete.
    pub fn after_bootstrap(listener: Listener, config: HandshakeConfig) -> Self {
        Self {
            _close_on_fork: Some(CloseOnFork::new(listener.as_fd())),
            reject_log: RejectLog::after_bootstrap(),
            ..Self::new(vec![listener], config)
        }
    }

    /// Waits for events of connections and of `watched`. The result is empty at the deadline.
    ///
    /// # Errors
    /// [`Error::System`] if the process cannot wait.
    pub fn wait(&mut self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<Vec<PoolEvent>> {
        loop {
            let ready = self.poll(watched, deadline)?;
            let mut events: Vec<PoolEvent> = Vec::new();
            events.extend((0..watched.len()).filter(|&index| ready[index]).map(PoolEvent::Ready));
            // Pending connections come before new ones, because `ready` has no entry for the new
            // ones.
            self.advance_pending(&ready[watched.len()..], &mut events);
            self.accept_new(&ready[watched.len()..], &mut events);
            if !events.is_empty() || Instant::now() >= deadline {
                return Ok(events);
            }
        }
    }

    /// Waits until one of `watched`, the listeners and the connections is ready, or a connection
    /// must be evicted. Returns, in this order, true for each of them that is ready.
    fn poll(&self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<Vec<bool>> {
        let now = Instant::now();
        let first_deadline = self.pending.iter().map(|conn| conn.deadline()).min();
        // A full pool leaves new connections in the queue of the listener until a grace period is
        // over.
        let full = self.pending.len() >= PENDING_MAX;
        let grace_end =
            full.then(|| self.pending.iter().map(|conn| conn.accepted_at + GRACE).min()).flatten();
        let is_over = grace_end.is_some_and(|end| end <= now);
        let wake_at = [first_deadline, grace_end.filter(|_| !is_over)]
            .into_iter()
            .flatten()
            .fold(deadline, Instant::min);
        let left = wake_at.saturating_duration_since(now);
        let wanted = if full && !is_over { PollFlags::empty() } else { PollFlags::IN };
        let watched = watched.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let listeners =
            self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), wanted));
        let pending =
            self.pending.iter().map(|conn| PollFd::from_borrowed_fd(conn.stream.as_fd(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = watched.chain(listeners).chain(pending).collect();
        match sync::poll(&mut fds, left) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                let what = "cannot wait for connections".to_owned();
                return Err(Error::System { what, source: errno.into() });
            }
        }
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Continues the handshakes for which bytes have arrived, and rejects connections whose time is
    /// over.
    fn advance_pending(&mut self, ready: &[bool], events: &mut Vec<PoolEvent>) {
        let (mut index, now) = (self.listeners.len(), Instant::now());
        let mut kept = Vec::with_capacity(self.pending.len());
        for mut conn in std::mem::take(&mut self.pending) {
            let readable = ready[index];
            index += 1;
            match readable.then(|| conn.handshake.advance(&mut conn.stream, &self.config)) {
                Some(Ok(Some(hello))) => events.push(PoolEvent::Authenticated(conn.stream, hello)),
                Some(Err(error)) => self.reject(error, events),
                _ if now >= conn.deadline() => self.reject(conn.timeout_error(), events),
                _ => kept.push(conn),
            }
        }
        self.pending = kept;
    }

    /// Accepts new connections, but only so many at a time that pending ones are served in between.
    fn accept_new(&mut self, ready: &[bool], events: &mut Vec<PoolEvent>) {
        for index in (0..self.listeners.len()).filter(|&index| ready[index]) {
            for _ in 0..ACCEPTS_PER_ROUND {
                if self.pending.len() >= PENDING_MAX && !self.evict_one(events) {
                    break;
                }
                match self.listeners[index].accept() {
                    Ok(Some(stream)) => self.pending.push(PendingConn::new(stream)),
                    Ok(None) => break,
                    Err(error) => {
                        // An evicted connection frees the resource, such as a descriptor.
                        if is_resource_exhausted(&error) && !self.evict_one(events) {
                            thread::sleep(RETRY_AFTER);
                        }
                        self.reject(error, events);
                        break;
                    }
                }
            }
        }
    }

    /// Evicts a connection whose grace period is over, and returns false if there is none.
    fn evict_one(&mut self, events: &mut Vec<PoolEvent>) -> bool {
        let Some(index) = evict_candidate(&self.pending, Instant::now()) else {
            return false;
        };
        let conn = self.pending.remove(index);
        self.reject(conn.timeout_error(), events);
        true
    }

    fn reject(&mut self, error: Error, events: &mut Vec<PoolEvent>) {
        self.reject_log.record(&error);
        events.push(PoolEvent::Unauthenticated(error));
    }
}

/// Time within which a connection must complete its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Grace period in which a connection keeps its slot: any handshake that is under way completes in
/// it.
const GRACE: Duration = Duration::from_millis(100);
/// Largest number of pending connections: enough for a port scan and all ranks of a large job.
const PENDING_MAX: usize = 256;
const ACCEPTS_PER_ROUND: usize = 64;
const RETRY_AFTER: Duration = Duration::from_millis(1);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::net::handshake;
    use crate::net::handshake::{Purpose, Secret};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    const HELLO: Hello = Hello { purpose: Purpose::Join, rank: 3, ranks: 4, index: 0, session: 0 };

    fn config() -> HandshakeConfig {
        HandshakeConfig { secret: Secret::random().unwrap(), encrypt: false }
    }

    fn pool() -> (HandshakePool, SocketAddr, HandshakeConfig) {
        let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (address, config) = (listener.address().unwrap(), config());
        (HandshakePool::new(vec![listener], config.clone()), address, config)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    fn call(address: SocketAddr, config: &HandshakeConfig) -> Result<()> {
        handshake::connect(&mut Stream::connect(address, soon())?, config, &HELLO, soon())
    }

    #[test]
    fn silent_connections_block_nobody() {
        let (mut pool, address, config) = pool();
        let _silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let client = std::thread::spawn(move || call(address, &config));
        let events = pool.wait(&[], soon()).unwrap();
        assert!(matches!(events[..], [PoolEvent::Authenticated(_, HELLO)]), "{events:?}");
        client.join().unwrap().unwrap();
    }

    #[test]
    fn wrong_secret_is_unauthenticated() {
        let (mut pool, address, _) = pool();
        let client = std::thread::spawn(move || call(address, &config()));
        let events = pool.wait(&[], soon()).unwrap();
        assert!(matches!(events[..], [PoolEvent::Unauthenticated(Error::AuthFailed { .. })]), "{events:?}");
        assert!(client.join().unwrap().is_err());
    }

    #[test]
    fn wait_reports_ready_index_and_honors_deadline() {
        let (mut pool, ..) = pool();
        let (quiet, _other) = std::io::pipe().unwrap();
        let (ended, other) = std::io::pipe().unwrap();
        drop(other);
        let events = pool.wait(&[quiet.as_fd(), ended.as_fd()], soon()).unwrap();
        assert!(matches!(events[..], [PoolEvent::Ready(1)]), "{events:?}");
        let begun = Instant::now();
        assert!(pool.wait(&[quiet.as_fd()], Instant::now() + Duration::from_millis(50)).unwrap().is_empty());
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
}
