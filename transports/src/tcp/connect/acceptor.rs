//! The thread that accepts TCP connections of peers, for the lifetime of a rank.
//!
//! Two ranks need at most one set of data connections. Either of them may need it first, or both at
//! the same time. The sender dials, and the receiver accepts. If both dial, the higher rank
//! decides: while it dials, it rejects the lower rank, and otherwise it accepts. The thread does
//! nothing else, so a rank that computes does not delay its peers.
//!
//! A liveness probe connects only to learn whether this rank is alive. So the listener outlives
//! links and communicators, and closes when the last owner of the [`Acceptor`] drops it.

use crate::net::handshake::{HandshakeConfig, Hello, Purpose};
use crate::net::listener::Listener;
use crate::net::stream::Stream;
use crate::sync::{AtomicBool, Instant, Mutex, MutexGuard, thread};
use crate::sys::descriptors::off_stdio;
use crate::sys::fork_guard;
use crate::tcp::connect::handshake_pool::{HandshakePool, PoolEvent};
use crate::wait::Watcher;
use crate::{Error, Result, sync};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The acceptor of a rank. Dropping it closes the listener.
#[derive(Debug)]
pub struct Acceptor {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    /// Process in which the thread runs.
    owner_pid: u64,
}

/// State that the thread and the rank share.
#[derive(Debug)]
struct Shared {
    rank: usize,
    /// Number of data connections between two ranks.
    sockets: usize,
    session: u64,
    /// Wakes the rank from its sleep.
    watcher: Mutex<Option<Watcher>>,
    /// Control connections that were accepted.
    control_streams: Mutex<VecDeque<(usize, Stream)>>,
    /// Readable when a control connection was accepted.
    event_fd: OwnedFd,
    peers: Vec<PeerState>,
}

/// State of the data connections with one peer.
#[derive(Debug, Default)]
struct PeerState {
    /// True once all connections have been accepted.
    complete: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    /// Neither rank has dialed.
    #[default]
    None,
    /// This rank is dialing.
    Dialing,
    /// The peer has rejected this rank, because it is dialing itself.
    AwaitingPeer,
    /// The peer is dialing. These connections were accepted so far.
    Accepting(Vec<Stream>),
    /// The link has its connections.
    Done,
}

impl Acceptor {
    /// Starts the thread. It accepts peers at `listener` that know the secret and belong to
    /// `session`.
    ///
    /// # Errors
    /// [`Error::System`] if the thread or its event cannot be made.
    pub fn spawn(
        listener: Listener,
        config: &HandshakeConfig,
        session: u64,
        (rank, ranks): (usize, usize),
        sockets: usize,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::new(rank, ranks, sockets, session)?);
        let stop = Arc::new(new_event_fd()?);
        let (served, end) = (Arc::clone(&shared), Arc::clone(&stop));
        let pool = HandshakePool::after_bootstrap(listener, config.clone());
        let thread = thread::Builder::new().name("unisono accept".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || served.serve(pool, &end)).map_err(failed)?;
        Ok(Self { shared, stop, owner_pid: fork_guard::current_pid() })
    }

    /// Wakes the rank by `watcher` whenever a data connection is accepted.
    pub fn set_watcher(&self, watcher: Watcher) {
        *lock(&self.shared.watcher) = Some(watcher);
    }

    /// Returns a descriptor that is readable after a control connection was accepted.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event_fd.as_fd()
    }

    /// Takes the next control connection, with the rank of its peer.
    pub fn next_control(&self) -> Option<(usize, Stream)> {
        // The event is cleared before the queue is read, so a later connection signals it again.
        sync::step();
        let _ = rustix::io::read(&self.shared.event_fd, &mut [0; 8]);
        lock(&self.shared.control_streams).pop_front()
    }

    /// Takes the connections of `peer`, once, when all of them were accepted.
    pub(crate) fn take_streams(&self, peer: usize) -> Option<Vec<Stream>> {
        let pair = &self.shared.peers[peer];
        if !pair.complete.load(Ordering::Acquire) {
            return None;
        }
        match std::mem::replace(&mut *lock(&pair.state), State::Done) {
            State::Accepting(streams) => Some(streams),
            _ => None,
        }
    }

    /// Claims the right to dial `peer`, and returns true if this rank must dial.
    ///
    /// The caller must report the end with [`Acceptor::dial_finished`].
    pub(crate) fn try_claim_dial(&self, peer: usize) -> bool {
        let mut state = lock(&self.shared.peers[peer].state);
        let free = matches!(*state, State::None);
        if free {
            *state = State::Dialing;
        }
        free
    }

    /// Reports the end of a dial. If it did not connect, the peer is dialing itself.
    pub(crate) fn dial_finished(&self, peer: usize, connected: bool) {
        let mut state = lock(&self.shared.peers[peer].state);
        if matches!(*state, State::Dialing) {
            *state = if connected { State::Done } else { State::AwaitingPeer };
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // A forked child has a copy of this value, and shares the event with its parent.
        if self.owner_pid == fork_guard::current_pid() {
            let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        }
    }
}

impl Shared {
    fn new(rank: usize, ranks: usize, sockets: usize, session: u64) -> Result<Self> {
        Ok(Self {
            rank,
            sockets,
            session,
            watcher: Mutex::default(),
            control_streams: Mutex::default(),
            event_fd: new_event_fd()?,
            peers: (0..ranks).map(|_| PeerState::default()).collect(),
        })
    }

    fn serve(&self, mut pool: HandshakePool, stop: &OwnedFd) {
        loop {
            let events = match pool.wait(&[stop.as_fd()], Instant::now() + POLL_TIMEOUT) {
                Ok(events) => events,
                Err(error) => {
                    // The listener stays open, because peers would interpret a closed listener as
                    // the end of the rank.
                    tracing::error!(%error, "accept loop failed, retrying");
                    std::thread::sleep(RETRY_DELAY);
                    continue;
                }
            };
            for event in events {
                match event {
                    PoolEvent::Authenticated(stream, hello) => self.admit(stream, &hello),
                    PoolEvent::Unauthenticated(_) => {}
                    PoolEvent::Ready(_) => return,
                }
            }
        }
    }

    /// Accepts or rejects an authenticated connection.
    fn admit(&self, stream: Stream, hello: &Hello) {
        let (peer, index) = (hello.rank as usize, hello.index as usize);
        if hello.session != self.session || peer >= self.peers.len() || peer == self.rank {
            return;
        }
        match hello.purpose {
            Purpose::Control => {
                lock(&self.control_streams).push_back((peer, stream));
                sync::step();
                let _ = rustix::io::write(&self.event_fd, &1u64.to_ne_bytes());
            }
            Purpose::Data => self.admit_data(peer, index, stream),
            Purpose::Probe => self.answer_probe(stream),
            Purpose::Join | Purpose::Status => {}
        }
    }

    /// Answers a liveness probe. The connection is dropped afterwards.
    fn answer_probe(&self, mut stream: Stream) {
        // If the probe has disconnected in the meantime, it needs no answer.
        let _ = stream.write_now(&[ACCEPT]);
    }

    fn admit_data(&self, peer: usize, index: usize, mut stream: Stream) {
        let pair = &self.peers[peer];
        let mut state = lock(&pair.state);
        let is_wanted = match &*state {
            State::None | State::AwaitingPeer => true,
            // The lower rank accepts: the higher rank has rejected its dial, or will do so.
            State::Dialing => self.rank < peer,
            State::Accepting(streams) => streams.len() < self.sockets,
            State::Done => false,
        };
        let streams = match &mut *state {
            State::Accepting(streams) => std::mem::take(streams),
            _ => Vec::new(),
        };
        let answer = if is_wanted && index == streams.len() { ACCEPT } else { REJECT };
        if stream.write_now(&[answer]).is_err() || answer == REJECT {
            if !streams.is_empty() {
                *state = State::Accepting(streams);
            }
            return;
        }
        if let Some(watcher) = &*lock(&self.watcher) {
            watcher.add(&stream);
        }
        let streams: Vec<Stream> = streams.into_iter().chain([stream]).collect();
        let complete = streams.len() == self.sockets;
        *state = State::Accepting(streams);
        pair.complete.store(complete, Ordering::Release);
    }
}

/// Returns the answer of the acceptor at the other end, if it has arrived. False means that its
/// rank dials itself.
///
/// # Errors
/// [`Error::ConnectionClosed`] and [`Error::System`].
pub(crate) fn is_accepted(stream: &mut Stream) -> Result<Option<bool>> {
    let mut answer = Vec::new();
    Ok(stream.read_some(&mut answer, 1)?.then(|| answer[0] == ACCEPT))
}

/// Returns true if `error` is the end of a connection by its peer, after which a second attempt may
/// succeed.
///
/// A listener under load evicts connections before their handshake is complete. A closed listener
/// refuses the connection, which is not transient. The caller must know how far the handshake was.
pub fn is_transient(error: &Error) -> bool {
    use std::io::ErrorKind;
    match error {
        Error::System { source, .. } => {
            matches!(source.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        error => matches!(error, Error::ConnectionClosed { .. }),
    }
}

/// Delays between attempts to connect, each twice as long as the last.
///
/// The delays begin short, because a listener under load soon evicts its unauthenticated
/// connections, and a starting rank soon listens.
#[derive(Clone, Copy, Debug)]
pub struct Backoff(Duration);

impl Backoff {
    /// Returns the next delay.
    pub fn next_delay(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (2 * pause).min(BACKOFF_MAX);
        pause
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

const BACKOFF_MAX: Duration = Duration::from_millis(20);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked with the lock held left a consistent state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_event_fd() -> Result<OwnedFd> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Into::into);
    event.and_then(off_stdio).map_err(failed)
}

fn failed(source: std::io::Error) -> Error {
    Error::System { what: "cannot start the accept thread".to_owned(), source }
}

const ACCEPT: u8 = b'y';
const REJECT: u8 = b'n';
/// Timeout of a wait that only events end.
const POLL_TIMEOUT: Duration = Duration::from_secs(3600);
/// Delay before the next attempt after a wait has failed.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Stack of the accept thread. Handshakes need little.
const STACK_BYTES: usize = 128 << 10;

#[cfg(all(test, shuttle))]
mod model_tests;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::sys::socket_calls::first_ready;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{TryRecvError, channel};

    /// A thread that sleeps while there is no control connection finds every connection.
    #[test]
    fn no_control_connection_wakeup_is_lost() {
        let shared = Arc::new(Shared::new(0, 2, 1, 7).unwrap());
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            stop: Arc::new(new_event_fd().unwrap()),
            owner_pid: fork_guard::current_pid(),
        };
        let hello = Hello { purpose: Purpose::Control, rank: 1, ranks: 2, index: 0, session: 7 };
        let (request, requests) = channel();
        std::thread::scope(|scope| {
            let (shared, hello) = (&shared, &hello);
            scope.spawn(move || {
                let make = || Stream::Unix(UnixStream::pair().unwrap().0);
                let mut next = None;
                loop {
                    next.get_or_insert_with(make);
                    match requests.try_recv() {
                        Ok(()) => next.take().into_iter().for_each(|stream| shared.admit(stream, hello)),
                        Err(TryRecvError::Empty) => std::hint::spin_loop(),
                        Err(TryRecvError::Disconnected) => return,
                    }
                }
            });
            let request = request; // dropped at the end of this scope, so that the other thread ends
            for turn in 0..20_000 {
                request.send(()).unwrap();
                (0..turn % 1024).for_each(|_| std::hint::spin_loop()); // varies the order of arrival and poll
                while acceptor.next_control().is_none() {
                    let soon = Instant::now() + Duration::from_secs(5);
                    let rung = first_ready(&[acceptor.event_fd()], soon).unwrap();
                    assert!(rung.is_some(), "lost wakeup after {turn}");
                }
            }
        });
    }
}
