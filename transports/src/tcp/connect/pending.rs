//! Where connections stay until they have proved themselves, all of them heard by one thread: one that
//! says nothing holds up nobody.
//!
//! A conn costs a descriptor and the hundred bytes of its half of the handshake. It has a moment to itself, and
//! a little more while nobody waits for its place: then the oldest of those leaves whose address has most guests here.
pub(crate) mod admission;

use crate::secure::handshake::{HandshakeConfig, Hello};
use crate::sync::{self, Instant, thread};
use crate::sys::listener::Listener;
use crate::sys::socket::Stream;
use crate::tcp::connect::pending::admission::{PendingConn, RejectLog};
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Listeners, and guests who are being heard.
#[derive(Debug)]
pub struct HandshakePool {
    listeners: Vec<Listener>,
    terms: HandshakeConfig,
    pending: Vec<PendingConn>,
    reject_log: RejectLog,
}

/// What there is to know.
#[derive(Debug)]
pub enum PoolEvent {
    /// Somebody who knows the secret, and what it says that it is.
    Authenticated(Stream, Hello),
    /// Somebody was sent away: why. The log has it, unless there are many.
    Unauthenticated(Error),
    /// The watched descriptor of this index can be read, or is closed.
    Ready(usize),
}

impl HandshakePool {
    /// For connections to `listeners` from those who know the secret, on these terms.
    pub fn new(listeners: Vec<Listener>, terms: HandshakeConfig) -> Self {
        Self { listeners, terms, pending: Vec::new(), reject_log: RejectLog::default() }
    }

    /// As [`HandshakePool::new`], at the door of a rank that has met the others.
    pub fn after_bootstrap(listener: Listener, terms: HandshakeConfig) -> Self {
        let complaints = RejectLog::after_bootstrap();
        Self { listeners: vec![listener], terms, pending: Vec::new(), reject_log: complaints }
    }

    /// Waits for events of guests and of `watched`; nothing at the deadline.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn wait(&mut self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<Vec<PoolEvent>> {
        loop {
            let ready = self.poll(watched, deadline)?;
            let mut events: Vec<PoolEvent> = Vec::new();
            events.extend((0..watched.len()).filter(|&index| ready[index]).map(PoolEvent::Ready));
            self.advance_pending(&ready[watched.len()..], &mut events);
            self.accept_new(&ready[watched.len()..], &mut events);
            if !events.is_empty() || Instant::now() >= deadline {
                return Ok(events);
            }
        }
    }

    /// Whether each of `watched`, the listeners and the guests is ready, once one of them is, or it is time
    /// for somebody to go.
    fn poll(&self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<Vec<bool>> {
        let now = Instant::now();
        let until = self.pending.iter().map(|conn| conn.deadline()).min();
        // With no room, connections wait in the queue until somebody has had its moment.
        let full = self.pending.len() >= PENDING_MAX;
        let moment = full.then(|| self.pending.iter().map(|conn| conn.accepted_at + GRACE).min()).flatten();
        let is_over = moment.is_some_and(|moment| moment <= now);
        let until = [until, moment.filter(|_| !is_over)].into_iter().flatten().fold(deadline, Instant::min);
        let left = until.saturating_duration_since(now);
        let wanted = if full && !is_over { PollFlags::empty() } else { PollFlags::IN };
        let watched = watched.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let listeners =
            self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), wanted));
        let guests =
            self.pending.iter().map(|conn| PollFd::from_borrowed_fd(conn.stream.as_fd(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = watched.chain(listeners).chain(guests).collect();
        match sync::poll(&mut fds, left) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                let what = "cannot wait for connections".to_owned();
                return Err(Error::System { what, source: errno.into() });
            }
        }
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Goes on with the guests that have said more, and sends those away whose time is up.
    fn advance_pending(&mut self, ready: &[bool], events: &mut Vec<PoolEvent>) {
        let (mut index, now) = (self.listeners.len(), Instant::now());
        let mut kept = Vec::with_capacity(self.pending.len());
        for mut conn in std::mem::take(&mut self.pending) {
            let said_more = ready[index];
            index += 1;
            match said_more.then(|| conn.handshake.advance(&mut conn.stream, &self.terms)) {
                Some(Ok(Some(claims))) => events.push(PoolEvent::Authenticated(conn.stream, claims)),
                Some(Err(error)) => self.reject(error, events),
                _ if now >= conn.deadline() => self.reject(conn.timeout_error(), events),
                _ => kept.push(conn),
            }
        }
        self.pending = kept;
    }

    /// Lets in who knocks, but so many at a time that those who are here are heard in between.
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
                        // What is short, such as descriptors, a conn may have.
                        if crate::tcp::connect::pending::admission::is_resource_exhausted(&error)
                            && !self.evict_one(events)
                        {
                            thread::sleep(RETRY_AFTER);
                        }
                        self.reject(error, events);
                        break;
                    }
                }
            }
        }
    }

    /// Sends a conn away that has had its moment; false if there is none.
    fn evict_one(&mut self, events: &mut Vec<PoolEvent>) -> bool {
        let Some(index) =
            crate::tcp::connect::pending::admission::evict_candidate(&self.pending, Instant::now())
        else {
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

/// How long one connection may take to prove itself.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long nobody takes its place: any handshake that is under way is over by then.
const GRACE: Duration = Duration::from_millis(100);
/// Guests at once: enough for a port scan and all ranks of a large job.
const PENDING_MAX: usize = 256;
const ACCEPTS_PER_ROUND: usize = 64;
const RETRY_AFTER: Duration = Duration::from_millis(1);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::secure::handshake;
    use crate::secure::handshake::{Purpose, Secret};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    const HELLO: Hello = Hello { purpose: Purpose::Join, rank: 3, ranks: 4, index: 0, session: 0 };

    fn terms() -> HandshakeConfig {
        HandshakeConfig { secret: Secret::random().unwrap(), encrypt: false }
    }

    fn pool() -> (HandshakePool, SocketAddr, HandshakeConfig) {
        let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (address, terms) = (listener.address().unwrap(), terms());
        (HandshakePool::new(vec![listener], terms.clone()), address, terms)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    fn call(address: SocketAddr, terms: &HandshakeConfig) -> Result<()> {
        handshake::connect(&mut Stream::connect(address, soon())?, terms, &HELLO, soon())
    }

    #[test]
    fn silent_connections_block_nobody() {
        let (mut porch, address, terms) = pool();
        let _silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let client = std::thread::spawn(move || call(address, &terms));
        let events = porch.wait(&[], soon()).unwrap();
        assert!(matches!(events[..], [PoolEvent::Authenticated(_, HELLO)]), "{events:?}");
        client.join().unwrap().unwrap();
    }

    #[test]
    fn wrong_secret_is_unauthenticated() {
        let (mut porch, address, _) = pool();
        let client = std::thread::spawn(move || call(address, &terms()));
        let events = porch.wait(&[], soon()).unwrap();
        assert!(matches!(events[..], [PoolEvent::Unauthenticated(Error::AuthFailed { .. })]), "{events:?}");
        assert!(client.join().unwrap().is_err());
    }

    #[test]
    fn wait_reports_ready_index_and_honors_deadline() {
        let (mut porch, ..) = pool();
        let (quiet, _other) = std::io::pipe().unwrap();
        let (ended, other) = std::io::pipe().unwrap();
        drop(other);
        let events = porch.wait(&[quiet.as_fd(), ended.as_fd()], soon()).unwrap();
        assert!(matches!(events[..], [PoolEvent::Ready(1)]), "{events:?}");
        let begun = Instant::now();
        assert!(porch.wait(&[quiet.as_fd()], Instant::now() + Duration::from_millis(50)).unwrap().is_empty());
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
}
