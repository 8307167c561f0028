//! The thread that lets peers in over TCP, for as long as a rank is there.
//!
//! Two ranks need at most one set of connections for messages, and either may
//! want it first, or both at once. Who wants to send dials; who is dialled lets
//! in. If both dial, the higher rank decides, alone: it sends the lower one away
//! if it is dialling itself, and else does not dial any more. The doorman has
//! nothing else to wait for, so a rank that computes keeps nobody who dials waiting.
//!
//! Who [knocks](crate::lazy) only asks whether the rank is there. So a door stays open for as long as the rank may go on, with
//! those it left behind outside: while somebody holds the [doorman](Doorman), also after links and communicators are gone.

use crate::auth::{Claims, Purpose, Terms};
use crate::listener::Listener;
use crate::pace::Watcher;
use crate::porch::{News, Porch};
use crate::socket::Stream;
use crate::sync::{AtomicBool, Instant, Mutex, MutexGuard, thread};
use crate::{Error, Result, fork, sync};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A rank's doorman. Dropping it shuts the door.
#[derive(Debug)]
pub struct Doorman {
    lobby: Arc<Lobby>,
    stop: Arc<OwnedFd>,
    /// Where its thread runs.
    process: u64,
}

/// What doorman and rank share.
#[derive(Debug)]
struct Lobby {
    rank: usize,
    /// Connections for messages between two ranks.
    sockets: usize,
    session: u64,
    /// Wakes the rank, once it can be woken.
    watcher: Mutex<Option<Watcher>>,
    /// Connections for notes that have come.
    controls: Mutex<VecDeque<(usize, Stream)>>,
    /// Counts them.
    bell: OwnedFd,
    pairs: Vec<Pair>,
}

/// How far the connections with one peer are.
#[derive(Debug, Default)]
struct Pair {
    /// Whether all of them are here to be taken.
    complete: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has wanted any.
    #[default]
    None,
    /// This rank is dialling.
    Dialling,
    /// The peer has sent this rank away, because it is dialling itself.
    Expected,
    /// The peer is: these have come so far.
    Coming(Vec<Stream>),
    /// There is no more to do.
    Done,
}

impl Doorman {
    /// Lets in the peers that come to `listener` on these terms, know the secret and are of this meeting.
    ///
    /// # Errors
    /// The system's.
    pub fn hire(
        listener: Listener,
        terms: &Terms,
        session: u64,
        (rank, ranks): (usize, usize),
        sockets: usize,
    ) -> Result<Self> {
        let lobby = Arc::new(Lobby::new(rank, ranks, sockets, session)?);
        let stop = Arc::new(event()?);
        let (inside, end) = (Arc::clone(&lobby), Arc::clone(&stop));
        let porch = Porch::of_one_who_has_met(listener, terms.clone());
        let thread = thread::Builder::new().name("unisono doorman".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || inside.serve(porch, &end)).map_err(failed)?;
        Ok(Self { lobby, stop, process: fork::process() })
    }

    /// Peers whose connection for messages comes wake this rank from now on.
    pub fn wake(&self, watcher: Watcher) {
        *open(&self.lobby.watcher) = Some(watcher);
    }

    /// Can be read when a connection for notes has come since one was last asked for.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.lobby.bell.as_fd()
    }

    /// The next connection for notes that has come, and from whom.
    pub fn control(&self) -> Option<(usize, Stream)> {
        // The bell is silenced before one looks: whoever comes after that rings again.
        sync::step();
        let _ = rustix::io::read(&self.lobby.bell, &mut [0; 8]);
        open(&self.lobby.controls).pop_front()
    }

    /// The connections that `peer` has made, once all of them are here; they are taken once.
    pub(crate) fn take(&self, peer: usize) -> Option<Vec<Stream>> {
        let pair = &self.lobby.pairs[peer];
        if !pair.complete.load(Ordering::Acquire) {
            return None;
        }
        match std::mem::replace(&mut *open(&pair.state), State::Done) {
            State::Coming(streams) => Some(streams),
            _ => None,
        }
    }

    /// Whether this rank may dial `peer`: then it has to, and says how it ended with [`Doorman::dialled`].
    pub(crate) fn may_dial(&self, peer: usize) -> bool {
        let mut state = open(&self.lobby.pairs[peer].state);
        let free = matches!(*state, State::None);
        if free {
            *state = State::Dialling;
        }
        free
    }

    /// Dialling has ended: with a set of connections, or because the peer dials itself.
    pub(crate) fn dialled(&self, peer: usize, connected: bool) {
        let mut state = open(&self.lobby.pairs[peer].state);
        if matches!(*state, State::Dialling) {
            *state = if connected { State::Done } else { State::Expected };
        }
    }
}

impl Drop for Doorman {
    fn drop(&mut self) {
        // A child that was forked has a copy of this, and the event in common with its parent.
        if self.process == fork::process() {
            let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        }
    }
}

impl Lobby {
    fn new(rank: usize, ranks: usize, sockets: usize, session: u64) -> Result<Self> {
        Ok(Self {
            rank,
            sockets,
            session,
            watcher: Mutex::default(),
            controls: Mutex::default(),
            bell: event()?,
            pairs: (0..ranks).map(|_| Pair::default()).collect(),
        })
    }

    fn serve(&self, mut porch: Porch, stop: &OwnedFd) {
        loop {
            let news = match porch.wait(&[stop.as_fd()], Instant::now() + ROUND) {
                Ok(news) => news,
                Err(error) => {
                    // A door that is shut is taken for an end: it stays open for better times.
                    tracing::error!(%error, "nobody can connect just now");
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            for piece in news {
                match piece {
                    News::Guest(stream, claims) => self.admit(stream, &claims),
                    News::Stranger(_) => {}
                    News::Ready(_) => return,
                }
            }
        }
    }

    /// Tells a guest whether it may stay, and keeps its connection if so.
    fn admit(&self, stream: Stream, claims: &Claims) {
        let (peer, index) = (claims.rank as usize, claims.index as usize);
        if claims.session != self.session || peer >= self.pairs.len() || peer == self.rank {
            return;
        }
        match claims.purpose {
            Purpose::Control => {
                open(&self.controls).push_back((peer, stream));
                sync::step();
                let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            }
            Purpose::Data => self.admit_data(peer, index, stream),
            Purpose::Knock => self.answer(stream),
            Purpose::Join | Purpose::Status => {}
        }
    }

    /// Tells who knocks that this rank is there; the connection has served its purpose.
    fn answer(&self, mut stream: Stream) {
        // Who has gone in the meantime does not hear it.
        let _ = stream.write_now(&[WELCOME]);
    }

    fn admit_data(&self, peer: usize, index: usize, mut stream: Stream) {
        let pair = &self.pairs[peer];
        let mut state = open(&pair.state);
        let is_wanted = match &*state {
            State::None | State::Expected => true,
            // The lower rank gives way: the higher one has not let it in, and never will.
            State::Dialling => self.rank < peer,
            State::Coming(streams) => streams.len() < self.sockets,
            State::Done => false,
        };
        let streams = match &mut *state {
            State::Coming(streams) => std::mem::take(streams),
            _ => Vec::new(),
        };
        let answer = if is_wanted && index == streams.len() { WELCOME } else { BUSY };
        if stream.write_now(&[answer]).is_err() || answer == BUSY {
            if !streams.is_empty() {
                *state = State::Coming(streams);
            }
            return;
        }
        if let Some(watcher) = &*open(&self.watcher) {
            watcher.add(&stream);
        }
        let streams: Vec<Stream> = streams.into_iter().chain([stream]).collect();
        let complete = streams.len() == self.sockets;
        *state = State::Coming(streams);
        pair.complete.store(complete, Ordering::Release);
    }
}

/// Whether the doorman at the other end lets this connection stay; false if its rank dials itself, none if it has not
/// said yet.
///
/// # Errors
/// [`Error::Closed`], the system's.
pub(crate) fn is_welcome(stream: &mut Stream) -> Result<Option<bool>> {
    let mut answer = Vec::new();
    Ok(stream.read_some(&mut answer, 1)?.then(|| answer[0] == WELCOME))
}

/// Whether somebody was sent away before the handshake was over: with strangers at the door, a second attempt may succeed.
/// A door that is shut refuses the connection itself. It says nothing of how far the handshake was: the caller knows.
pub fn is_crowded(error: &Error) -> bool {
    use std::io::ErrorKind;
    match error {
        Error::System { source, .. } => {
            matches!(source.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        error => matches!(error, Error::Closed { .. }),
    }
}

/// The pauses between attempts at a door, each twice as long as the one before: who crowds it has to leave soon, and whom it belongs
/// to may be starting.
#[derive(Clone, Copy, Debug)]
pub struct Pauses(Duration);

impl Pauses {
    /// The next one.
    pub fn take(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (2 * pause).min(PAUSE_MAX);
        pause
    }
}

impl Default for Pauses {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

const PAUSE_MAX: Duration = Duration::from_millis(20);

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked with the lock held left a whole state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| failed(errno.into()))
}

fn failed(source: std::io::Error) -> Error {
    Error::System { what: "cannot start the thread that lets peers in".to_owned(), source }
}

const WELCOME: u8 = b'y';
const BUSY: u8 = b'n';
/// Only the end of a wait that has none.
const ROUND: Duration = Duration::from_secs(3600);
/// Before waiting again where that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Handshakes need little.
const STACK_BYTES: usize = 128 << 10;

#[cfg(all(test, shuttle))]
mod models;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::socket::first_ready;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{TryRecvError, channel};

    /// Every connection that comes is found by somebody who looks, and sleeps when there is none.
    #[test]
    fn no_ring_of_the_bell_is_lost() {
        let lobby = Arc::new(Lobby::new(0, 2, 1, 7).unwrap());
        let doorman =
            Doorman { lobby: Arc::clone(&lobby), stop: Arc::new(event().unwrap()), process: fork::process() };
        let claims = Claims { purpose: Purpose::Control, rank: 1, ranks: 2, index: 0, session: 7 };
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
                while doorman.control().is_none() {
                    let soon = Instant::now() + Duration::from_secs(5);
                    let rung = first_ready(&[doorman.bell()], soon).unwrap();
                    assert!(rung.is_some(), "a connection is there, and nobody was told, after {turn}");
                }
            }
        });
    }
}
