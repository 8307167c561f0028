//! Passes the memory and the liveness pipes of a host's ranks to the first of them, and from it to
//! all.

use crate::bootstrap::connect::{PeerConnector, no_shared_memory};
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use unisono_transports::secure::handshake::{Hello, Purpose};
use unisono_transports::sys::listener::Listener;
use unisono_transports::sys::socket::Stream;
use unisono_transports::tcp::connect::handshake_pool::{HandshakePool, PoolEvent};
use unisono_transports::{Error as TransportError, sys::unix};

/// The descriptors that a rank passes to the others of its host.
pub(crate) struct SharedFds {
    pub(crate) segment: OwnedFd,
    pub(crate) liveness: OwnedFd,
}

/// A connected rank of this host, with its descriptors once they have arrived.
struct LocalPeer {
    rank: Rank,
    stream: Stream,
    fds: Option<SharedFds>,
}

type Result<T> = std::result::Result<T, Failure>;

impl SharedFds {
    fn fds(&self) -> [BorrowedFd<'_>; FDS_PER_RANK] {
        [self.segment.as_fd(), self.liveness.as_fd()]
    }

    /// Receives the descriptors of `count` ranks.
    fn receive(
        stream: &Stream,
        count: usize,
        meeting: &PeerConnector<'_>,
    ) -> std::result::Result<Vec<Self>, TransportError> {
        let mut fds = unix::recv_fds(stream, FDS_PER_RANK * count, meeting.deadline)?.into_iter();
        let received = || Some(SharedFds { segment: fds.next()?, liveness: fds.next()? });
        Ok(std::iter::from_fn(received).collect())
    }
}

impl PeerConnector<'_> {
    /// Passes this rank's descriptors to all `members` of its host. Returns those of all members,
    /// its own included, in rank order.
    pub(crate) fn exchange_local(
        &mut self,
        members: &[Rank],
        own: SharedFds,
        listener: Listener,
    ) -> Result<Vec<SharedFds>> {
        let (rank, first) = (self.rank(), members[0]);
        match members.len() {
            1 => Ok(vec![own]),
            _ if first == rank => self.distribute_fds(members, own, listener),
            count => {
                let failed = |error| no_shared_memory(rank, first, error);
                let stream = self.dial_peer(first, |record, _| unix::connect(&record.unix))?;
                unix::send_fds(&stream, &own.fds(), self.deadline).map_err(failed)?;
                self.wait_readable(stream.as_fd(), first)?;
                SharedFds::receive(&stream, count, self).map_err(failed)
            }
        }
    }

    /// Collects the descriptors of all members and sends all of them to each: the first rank's
    /// part.
    fn distribute_fds(
        &mut self,
        members: &[Rank],
        own: SharedFds,
        listener: Listener,
    ) -> Result<Vec<SharedFds>> {
        let local_peers = self.collect_fds(members, listener)?;
        let (streams, others): (Vec<_>, Vec<_>) = local_peers
            .into_iter()
            .filter_map(|peer_fds| Some(((peer_fds.rank, peer_fds.stream), peer_fds.fds?)))
            .unzip();
        let all_fds: Vec<SharedFds> = std::iter::once(own).chain(others).collect();
        let fds: Vec<BorrowedFd<'_>> = all_fds.iter().flat_map(SharedFds::fds).collect();
        for (peer, stream) in &streams {
            let sent = unix::send_fds(stream, &fds, self.deadline);
            sent.map_err(|error| no_shared_memory(self.rank(), *peer, error))?;
        }
        Ok(all_fds)
    }

    /// The other members with their descriptors, in rank order.
    fn collect_fds(&mut self, members: &[Rank], listener: Listener) -> Result<Vec<LocalPeer>> {
        let mut pool = HandshakePool::new(vec![listener], self.handshake_config());
        let mut local_peers: Vec<LocalPeer> = Vec::new();
        let missing = |local_peers: &[LocalPeer]| {
            let given =
                |rank| local_peers.iter().any(|peer_fds| peer_fds.rank == rank && peer_fds.fds.is_some());
            members[1..].iter().copied().find(|&rank| !given(rank))
        };
        while let Some(missing_rank) = missing(&local_peers) {
            self.check_deadline(missing_rank)?;
            let waiting: Vec<usize> =
                (0..local_peers.len()).filter(|&index| local_peers[index].fds.is_none()).collect();
            let root = std::iter::once(self.root.as_fd());
            let watched: Vec<_> =
                root.chain(waiting.iter().map(|&index| local_peers[index].stream.as_fd())).collect();
            for event in pool.wait(&watched, self.deadline)? {
                match event {
                    PoolEvent::Ready(0) => return Err(self.recv_root_failure()),
                    PoolEvent::Ready(index) => {
                        let peer_fds = &mut local_peers[waiting[index - 1]];
                        let received = SharedFds::receive(&peer_fds.stream, 1, self);
                        peer_fds.fds = received
                            .map_err(|error| no_shared_memory(self.rank(), peer_fds.rank, error))?
                            .pop();
                    }
                    // A connection that has proved nothing must not end the meeting.
                    PoolEvent::Unauthenticated(_) => {}
                    PoolEvent::Authenticated(stream, hello) => {
                        let rank = hello.rank as Rank;
                        let is_new = local_peers.iter().all(|peer_fds| peer_fds.rank != rank);
                        if self.expects(&hello) && members[1..].contains(&rank) && is_new {
                            local_peers.push(LocalPeer { rank, stream, fds: None });
                        }
                    }
                }
            }
        }
        local_peers.sort_by_key(|peer_fds| peer_fds.rank);
        Ok(local_peers)
    }

    fn expects(&self, hello: &Hello) -> bool {
        hello.session == self.session && hello.purpose == Purpose::Control
    }
}

/// Descriptors that one rank passes.
const FDS_PER_RANK: usize = 2;
