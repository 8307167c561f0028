//! Models of acceptors and lazy links: ranks that dial each other, in any order of their steps.

use crate::net::handshake::Secret;
use crate::net::model_sockets::listener;
use crate::sync::shuttle::TICK;
use crate::tcp::connect::acceptor::*;
use crate::tcp::connect::lazy_link::{DialContext, LazyLink};
use crate::testing::shuttle::explore;
use crate::{Geometry, Link, Tag};
use rustix::event::{PollFd, PollFlags};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use unisono_reducers::{Source, Target};

/// A rank with its links.
struct Rank {
    rank: usize,
    common: Arc<DialContext>,
    links: Vec<LazyLink>,
}

/// Makes ranks with their acceptors, none of which has dialed.
fn ranks(ranks: usize) -> Vec<Rank> {
    let terms = HandshakeConfig { secret: Secret::random().unwrap(), encrypt: false };
    let (listeners, addresses): (Vec<_>, Vec<_>) = (0..ranks).map(|_| listener()).unzip();
    listeners
        .into_iter()
        .enumerate()
        .map(|(rank, listener)| Rank::new((rank, listener), &addresses, &terms))
        .collect()
}

impl Rank {
    fn new((rank, listener): (usize, Listener), addresses: &[SocketAddr], terms: &HandshakeConfig) -> Self {
        let (ranks, session, terms) = (addresses.len(), 7, terms.clone());
        let acceptor = Acceptor::spawn(listener, &terms, session, (rank, ranks), SOCKETS).unwrap();
        let (sockets, geometry, timeout, watcher) = (SOCKETS, GEOMETRY, PATIENCE, None);
        let common =
            DialContext { rank, ranks, session, terms, sockets, geometry, timeout, acceptor, watcher };
        let common = Arc::new(common);
        let link = |(peer, &address)| LazyLink::new(Arc::clone(&common), peer, address);
        let links = addresses.iter().enumerate().map(link).collect();
        Self { rank, common, links }
    }

    /// Tries once to send this rank's number to a peer, and returns true if it was sent.
    fn try_send(&mut self, peer: usize) -> Result<bool> {
        let word = [self.rank as u8];
        self.links[peer].try_send(0, &Tag::default(), 1, &mut std::iter::once(Source::from(&word[..])))
    }

    /// Receives the peer's number, and returns false if it has not arrived.
    fn try_recv(&mut self, peer: usize) -> Result<bool> {
        if self.links[peer].header(0)?.is_none() {
            return Ok(false);
        }
        let mut word = [u8::MAX];
        let taken = self.links[peer].recv_into(0, Target::from(&mut word[..]))?;
        assert!(!taken || usize::from(word[0]) == peer, "rank {peer} has said {}", word[0]);
        Ok(taken)
    }

    /// Exchanges numbers: `says(from, to)` is true if `from` sends to `to`.
    fn exchange(mut self, says: fn(usize, usize) -> bool) -> Self {
        let (rank, peers) = (self.rank, 0..self.common.ranks);
        let mut to_say: Vec<_> = peers.clone().filter(|&peer| says(rank, peer)).collect();
        let mut to_hear: Vec<_> = peers.filter(|&peer| says(peer, rank)).collect();
        while !(to_say.is_empty() && to_hear.is_empty()) {
            to_say.retain(|&peer| !self.try_send(peer).unwrap());
            to_hear.retain(|&peer| !self.try_recv(peer).unwrap());
            thread::sleep(TICK);
        }
        self
    }

    /// Asserts that there is exactly one complete set of connections with a peer.
    fn assert_one_connection_set(&self, peer: usize) {
        let state = lock(&self.common.acceptor.shared.peers[peer].state);
        assert!(matches!(*state, State::Done), "rank {} and {peer}: {state:?}", self.rank);
        assert_eq!(self.links[peer].footprint().sockets, SOCKETS);
    }

    /// Returns true if this rank is dialing a peer, which may know it.
    fn dials(&self, peer: usize) -> bool {
        matches!(*lock(&self.common.acceptor.shared.peers[peer].state), State::Dialing)
    }

    /// Returns true if this rank waits for a peer that is dialing.
    fn awaits(&self, peer: usize) -> bool {
        matches!(
            *lock(&self.common.acceptor.shared.peers[peer].state),
            State::AwaitingPeer | State::Accepting(_)
        )
    }
}

/// Runs [`Rank::exchange`] on all ranks at once.
fn run_exchange(count: usize, says: fn(usize, usize) -> bool) {
    let threads = ranks(count).into_iter().map(|rank| thread::spawn(move || rank.exchange(says)));
    let threads: Vec<_> = threads.collect();
    let ranks: Vec<Rank> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (rank, peer) in ranks.iter().flat_map(|rank| (0..count).map(move |peer| (rank, peer))) {
        if says(rank.rank, peer) || says(peer, rank.rank) {
            rank.assert_one_connection_set(peer);
        }
    }
}

#[test]
fn shuttle_two_simultaneous_dials_agree() {
    explore(|| run_exchange(2, |rank, peer| rank != peer));
}

#[test]
fn shuttle_passive_rank_receives_from_lower_rank() {
    explore(|| run_exchange(2, |rank, peer| rank < peer));
}

#[test]
fn shuttle_passive_rank_receives_from_higher_rank() {
    explore(|| run_exchange(2, |rank, peer| rank > peer));
}

#[test]
fn shuttle_three_simultaneous_dials_agree() {
    explore(|| run_exchange(3, |rank, peer| rank != peer));
}

/// Lets one rank begin to send and leave at any moment. The other must learn that from its link.
///
/// If the other rank awaits a peer that left while dialing, only the control channel reports it,
/// which is not part of the model.
fn run_with_exit(leaver: usize) {
    let mut ranks = ranks(2);
    let (mut leaves, mut stays) = (ranks.remove(leaver), ranks.remove(0));
    let [has_left, has_dialed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (leaving, dialing) = (Arc::clone(&has_left), Arc::clone(&has_dialed));
    let leaving = thread::spawn(move || {
        for _ in 0..2 {
            let _ = leaves.try_send(1 - leaver);
            thread::sleep(TICK);
        }
        dialing.store(leaves.dials(1 - leaver), Ordering::Release);
        drop(leaves);
        leaving.store(true, Ordering::Release);
    });
    let mut said = false;
    let error = loop {
        let has_left = has_left.load(Ordering::Acquire);
        let ended = match said {
            true => stays.try_recv(leaver).map(drop),
            false => stays.try_send(leaver).map(|gone| said = gone),
        };
        match ended {
            Ok(()) if has_left && has_dialed.load(Ordering::Acquire) && stays.awaits(leaver) => {
                break None;
            }
            Ok(()) => thread::sleep(TICK),
            Err(error) => break Some(error),
        }
    };
    let is_right = |error: &Error| matches!(error, Error::ConnectionLost { peer, .. } if *peer == leaver);
    assert!(error.as_ref().is_none_or(is_right), "{error:?}");
    leaving.join().unwrap();
}

#[test]
fn shuttle_exit_of_lower_rank_is_reported() {
    explore(|| run_with_exit(0));
}

#[test]
fn shuttle_exit_of_higher_rank_is_reported() {
    explore(|| run_with_exit(1));
}

/// A thread that sleeps while there is no control connection finds every connection.
#[test]
fn shuttle_no_control_connection_wakeup_is_lost() {
    explore(|| {
        let rank = Arc::new(ranks(2).remove(0));
        let peers = (0..2).map(|_| {
            let shared = Arc::clone(&rank.common.acceptor.shared);
            thread::spawn(move || (0..2).for_each(|_| shared.admit(stream(), &CONTROL_HELLO)))
        });
        let peers: Vec<_> = peers.collect();
        for found in 0..4 {
            while rank.common.acceptor.next_control().is_none() {
                let event = &mut [PollFd::from_borrowed_fd(rank.common.acceptor.event_fd(), PollFlags::IN)];
                let ready = sync::poll(event, PATIENCE).unwrap();
                assert!(ready > 0, "lost wakeup after {found}");
            }
        }
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

fn stream() -> Stream {
    Stream::Unix(UnixStream::pair().unwrap().0)
}

const CONTROL_HELLO: Hello = Hello { purpose: Purpose::Control, rank: 1, ranks: 2, index: 0, session: 7 };
const SOCKETS: usize = 2;
const GEOMETRY: Geometry =
    Geometry { lanes: 1, slots: 2, slot_bytes: 64, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };
/// A timeout that no step reaches.
const PATIENCE: Duration = Duration::from_secs(5);
