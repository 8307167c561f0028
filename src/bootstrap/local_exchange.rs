//! Ranks of one host: everybody's memory and lifeline goes to the first of them, and from there to all.

use crate::bootstrap::connect::{PeerConnector, unreachable};
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use unisono_transports::secure::handshake::{Hello, Purpose};
use unisono_transports::sys::listener::Listener;
use unisono_transports::sys::socket::Stream;
use unisono_transports::tcp::connect::pending::{HandshakePool, PoolEvent};
use unisono_transports::{Error as TransportError, sys::unix};

/// What a rank hands to its neighbours.
pub(crate) struct SharedFds {
    pub(crate) segment: OwnedFd,
    pub(crate) liveness: OwnedFd,
}

/// A neighbour that has come, and its gift once it has given it.
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

    /// From so many descriptors that a neighbour sent.
    fn receive(
        stream: &Stream,
        count: usize,
        meeting: &PeerConnector<'_>,
    ) -> std::result::Result<Vec<Self>, TransportError> {
        let mut fds = unix::recv_fds(stream, FDS_PER_RANK * count, meeting.deadline)?.into_iter();
        let gift = || Some(SharedFds { segment: fds.next()?, liveness: fds.next()? });
        Ok(std::iter::from_fn(gift).collect())
    }
}

impl PeerConnector<'_> {
    /// Gives this rank's gift to all `members` of its host and gets theirs, in the order of the ranks; this
    /// rank's own comes back as well.
    pub(crate) fn exchange_local(
        &mut self,
        members: &[Rank],
        own: SharedFds,
        door: Listener,
    ) -> Result<Vec<SharedFds>> {
        let (rank, first) = (self.rank(), members[0]);
        match members.len() {
            1 => Ok(vec![own]),
            _ if first == rank => self.distribute_fds(members, own, door),
            count => {
                let failed = |error| unreachable(rank, first, &error);
                let stream = self.dial_peer(first, |record, _| unix::connect(&record.unix))?;
                unix::send_fds(&stream, &own.fds(), self.deadline).map_err(failed)?;
                self.wait_readable(stream.as_fd(), first)?;
                SharedFds::receive(&stream, count, self).map_err(failed)
            }
        }
    }

    /// The first rank's part: collects all gifts, and hands all of them to everybody.
    fn distribute_fds(&mut self, members: &[Rank], own: SharedFds, door: Listener) -> Result<Vec<SharedFds>> {
        let guests = self.collect_fds(members, door)?;
        let (streams, others): (Vec<_>, Vec<_>) =
            guests.into_iter().filter_map(|guest| Some(((guest.rank, guest.stream), guest.fds?))).unzip();
        let gifts: Vec<SharedFds> = std::iter::once(own).chain(others).collect();
        let fds: Vec<BorrowedFd<'_>> = gifts.iter().flat_map(SharedFds::fds).collect();
        for (peer, stream) in &streams {
            let sent = unix::send_fds(stream, &fds, self.deadline);
            sent.map_err(|error| unreachable(self.rank(), *peer, &error))?;
        }
        Ok(gifts)
    }

    /// The other members with their gifts, by rank.
    fn collect_fds(&mut self, members: &[Rank], door: Listener) -> Result<Vec<LocalPeer>> {
        let mut porch = HandshakePool::new(vec![door], self.handshake_config());
        let mut guests: Vec<LocalPeer> = Vec::new();
        let missing = |guests: &[LocalPeer]| {
            let given = |rank| guests.iter().any(|guest| guest.rank == rank && guest.fds.is_some());
            members[1..].iter().copied().find(|&rank| !given(rank))
        };
        while let Some(late) = missing(&guests) {
            self.check_deadline(late)?;
            let waiting: Vec<usize> =
                (0..guests.len()).filter(|&index| guests[index].fds.is_none()).collect();
            let root = std::iter::once(self.root.as_fd());
            let watched: Vec<_> =
                root.chain(waiting.iter().map(|&index| guests[index].stream.as_fd())).collect();
            for piece in porch.wait(&watched, self.deadline)? {
                match piece {
                    PoolEvent::Ready(0) => return Err(self.recv_root_failure()),
                    PoolEvent::Ready(index) => {
                        let guest = &mut guests[waiting[index - 1]];
                        let gift = SharedFds::receive(&guest.stream, 1, self);
                        guest.fds = gift.map_err(|error| unreachable(self.rank(), guest.rank, &error))?.pop();
                    }
                    // Whoever is not expected is a stranger, and strangers do not end a meeting.
                    PoolEvent::Unauthenticated(_) => {}
                    PoolEvent::Authenticated(stream, claims) => {
                        let rank = claims.rank as Rank;
                        let is_new = guests.iter().all(|guest| guest.rank != rank);
                        if self.expects(&claims) && members[1..].contains(&rank) && is_new {
                            guests.push(LocalPeer { rank, stream, fds: None });
                        }
                    }
                }
            }
        }
        guests.sort_by_key(|guest| guest.rank);
        Ok(guests)
    }

    fn expects(&self, claims: &Hello) -> bool {
        claims.session == self.session && claims.purpose == Purpose::Control
    }
}

/// Descriptors of one gift.
const FDS_PER_RANK: usize = 2;
