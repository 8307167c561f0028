//! The thread that lets peers in over TCP, for as long as a rank is there.
//!
//! Two ranks need at most one set of connections for messages, and either may
//! want it first, or both at once. Who wants to send dials; who is dialed lets
//! in. If both dial, the higher rank decides, alone: it sends the lower one away
//! if it is dialing itself, and else does not dial any more. The acceptor has
//! nothing else to wait for, so a rank that computes keeps nobody who dials waiting.
//!
//! Who [knocks](crate::tcp::connect::lazy_link) only asks whether the rank is there. So a door stays open for as long as the rank may go on, with
//! those it left behind outside: while somebody holds the [acceptor](Doorman), also after links and communicators are gone.

use crate::secure::handshake::{HandshakeConfig, Hello, Purpose};
use crate::sync::{AtomicBool, Instant, Mutex, MutexGuard, thread};
use crate::sys::fork_guard;
use crate::sys::listener::Listener;
use crate::sys::socket::Stream;
use crate::tcp::connect::pending::{HandshakePool, PoolEvent};
use crate::wait::Watcher;
use crate::{Error, Result, sync};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A rank's acceptor. Dropping it shuts the door.
#[derive(Debug)]
pub struct Acceptor {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    /// Where its thread runs.
    owner_pid: u64,
}

/// What acceptor and rank share.
#[derive(Debug)]
struct Shared {
    rank: usize,
    /// Connections for messages between two ranks.
    sockets: usize,
    session: u64,
    /// Wakes the rank, once it can be woken.
    watcher: Mutex<Option<Watcher>>,
    /// Connections for notes that have come.
    control_streams: Mutex<VecDeque<(usize, Stream)>>,
    /// Counts them.
    event_fd: OwnedFd,
    peers: Vec<PeerState>,
}

/// How far the connections with one peer are.
#[derive(Debug, Default)]
struct PeerState {
    /// Whether all of them are here to be taken.
    complete: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has wanted any.
    #[default]
    None,
    /// This rank is dialing.
    Dialing,
    /// The peer has sent this rank away, because it is dialing itself.
    AwaitingPeer,
    /// The peer is: these have come so far.
    Accepting(Vec<Stream>),
    /// There is no more to do.
    Done,
}

impl Acceptor {
    /// Lets in the peers that come to `listener` on these terms, know the secret and are of this meeting.
    ///
    /// # Errors
    /// The system's.
    pub fn spawn(
        listener: Listener,
        terms: &HandshakeConfig,
        session: u64,
        (rank, ranks): (usize, usize),
        sockets: usize,
    ) -> Result<Self> {
        let lobby = Arc::new(Shared::new(rank, ranks, sockets, session)?);
        let stop = Arc::new(new_event_fd()?);
        let (inside, end) = (Arc::clone(&lobby), Arc::clone(&stop));
        let porch = HandshakePool::after_bootstrap(listener, terms.clone());
        let thread = thread::Builder::new().name("unisono accept".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || inside.serve(porch, &end)).map_err(failed)?;
        Ok(Self { shared: lobby, stop, owner_pid: fork_guard::current_pid() })
    }

    /// Peers whose connection for messages comes wake this rank from now on.
    pub fn set_watcher(&self, watcher: Watcher) {
        *lock(&self.shared.watcher) = Some(watcher);
    }

    /// Can be read when a connection for notes has come since one was last asked for.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event_fd.as_fd()
    }

    /// The next connection for notes that has come, and from whom.
    pub fn next_control(&self) -> Option<(usize, Stream)> {
        // The bell is silenced before one looks: whoever comes after that rings again.
        sync::step();
        let _ = rustix::io::read(&self.shared.event_fd, &mut [0; 8]);
        lock(&self.shared.control_streams).pop_front()
    }

    /// The connections that `peer` has made, once all of them are here; they are taken once.
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

    /// Whether this rank may dial `peer`: then it has to, and says how it ended with [`Acceptor::dialed`].
    pub(crate) fn try_claim_dial(&self, peer: usize) -> bool {
        let mut state = lock(&self.shared.peers[peer].state);
        let free = matches!(*state, State::None);
        if free {
            *state = State::Dialing;
        }
        free
    }

    /// Dialling has ended: with a set of connections, or because the peer dials itself.
    pub(crate) fn dial_finished(&self, peer: usize, connected: bool) {
        let mut state = lock(&self.shared.peers[peer].state);
        if matches!(*state, State::Dialing) {
            *state = if connected { State::Done } else { State::AwaitingPeer };
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // A child that was forked has a copy of this, and the event in common with its parent.
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

    fn serve(&self, mut porch: HandshakePool, stop: &OwnedFd) {
        loop {
            let news = match porch.wait(&[stop.as_fd()], Instant::now() + POLL_TIMEOUT) {
                Ok(news) => news,
                Err(error) => {
                    // A door that is shut is taken for an end: it stays open for better times.
                    tracing::error!(%error, "nobody can connect just now");
                    std::thread::sleep(RETRY_DELAY);
                    continue;
                }
            };
            for piece in news {
                match piece {
                    PoolEvent::Authenticated(stream, claims) => self.admit(stream, &claims),
                    PoolEvent::Unauthenticated(_) => {}
                    PoolEvent::Ready(_) => return,
                }
            }
        }
    }

    /// Tells a guest whether it may stay, and keeps its connection if so.
    fn admit(&self, stream: Stream, claims: &Hello) {
        let (peer, index) = (claims.rank as usize, claims.index as usize);
        if claims.session != self.session || peer >= self.peers.len() || peer == self.rank {
            return;
        }
        match claims.purpose {
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

    /// Tells who knocks that this rank is there; the connection has served its purpose.
    fn answer_probe(&self, mut stream: Stream) {
        // Who has gone in the meantime does not hear it.
        let _ = stream.write_now(&[ACCEPT]);
    }

    fn admit_data(&self, peer: usize, index: usize, mut stream: Stream) {
        let pair = &self.peers[peer];
        let mut state = lock(&pair.state);
        let is_wanted = match &*state {
            State::None | State::AwaitingPeer => true,
            // The lower rank gives way: the higher one has not let it in, and never will.
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

/// Whether the acceptor at the other end lets this connection stay; false if its rank dials itself, none if it has not
/// said yet.
///
/// # Errors
/// [`Error::Closed`], the system's.
pub(crate) fn is_accepted(stream: &mut Stream) -> Result<Option<bool>> {
    let mut answer = Vec::new();
    Ok(stream.read_some(&mut answer, 1)?.then(|| answer[0] == ACCEPT))
}

/// Whether somebody was sent away before the handshake was over: with strangers at the door, a second attempt may succeed.
/// A door that is shut refuses the connection itself. It says nothing of how far the handshake was: the caller knows.
pub fn is_transient(error: &Error) -> bool {
    use std::io::ErrorKind;
    match error {
        Error::System { source, .. } => {
            matches!(source.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        error => matches!(error, Error::ConnectionClosed { .. }),
    }
}

/// The pauses between attempts at a door, each twice as long as the one before: who crowds it has to leave soon, and whom it belongs
/// to may be starting.
#[derive(Clone, Copy, Debug)]
pub struct Backoff(Duration);

impl Backoff {
    /// The next one.
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
    // Whoever panicked with the lock held left a whole state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_event_fd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| failed(errno.into()))
}

fn failed(source: std::io::Error) -> Error {
    Error::System { what: "cannot start the thread that lets peers in".to_owned(), source }
}

const ACCEPT: u8 = b'y';
const REJECT: u8 = b'n';
/// Only the end of a wait that has none.
const POLL_TIMEOUT: Duration = Duration::from_secs(3600);
/// Before waiting again where that failed.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Handshakes need little.
const STACK_BYTES: usize = 128 << 10;

#[cfg(all(test, shuttle))]
mod models;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::sys::socket::first_ready;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{TryRecvError, channel};

    /// Every connection that comes is found by somebody who looks, and sleeps when there is none.
    #[test]
    fn no_control_connection_wakeup_is_lost() {
        let lobby = Arc::new(Shared::new(0, 2, 1, 7).unwrap());
        let acceptor = Acceptor {
            shared: Arc::clone(&lobby),
            stop: Arc::new(new_event_fd().unwrap()),
            owner_pid: fork_guard::current_pid(),
        };
        let claims = Hello { purpose: Purpose::Control, rank: 1, ranks: 2, index: 0, session: 7 };
        let (ask, asked) = channel();
        std::thread::scope(|scope| {
            let (lobby, claims) = (&lobby, &claims);
            scope.spawn(move || {
                let stream = || Stream::Unix(UnixStream::pair().unwrap().0);
                let mut guest = None;
                loop {
                    guest.get_or_insert_with(stream);
                    match asked.try_recv() {
                        Ok(()) => guest.take().into_iter().for_each(|guest| lobby.admit(guest, claims)),
                        Err(TryRecvError::Empty) => std::hint::spin_loop(),
                        Err(TryRecvError::Disconnected) => return,
                    }
                }
            });
            let ask = ask; // dropped here, whatever happens, so that the other thread ends
            for turn in 0..20_000 {
                ask.send(()).unwrap();
                (0..turn % 1024).for_each(|_| std::hint::spin_loop()); // it comes sooner or later than one looks
                while acceptor.next_control().is_none() {
                    let soon = Instant::now() + Duration::from_secs(5);
                    let rung = first_ready(&[acceptor.event_fd()], soon).unwrap();
                    assert!(rung.is_some(), "a connection is there, and nobody was told, after {turn}");
                }
            }
        });
    }
}
