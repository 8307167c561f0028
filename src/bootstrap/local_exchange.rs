//! Passes the memory and the liveness pipes of a host's ranks to the first rank of the host, which
//! passes them to all.
//!
//! The ranks are divided into groups. A rank maps the memory of one group, and closes the
//! descriptors, before the next group follows. So only one pipe for each rank stays open, and the
//! connections of the first rank.

use crate::bootstrap::connect::{PeerConnector, no_shared_memory, unreachable};
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use unisono_transports::net::handshake::{Hello, Purpose};
use unisono_transports::net::listener::Listener;
use unisono_transports::net::stream::Stream;
use unisono_transports::tcp::connect::handshake_pool::{HandshakePool, PoolEvent};
use unisono_transports::{Error as TransportError, net::unix};

/// The descriptors that a rank passes to the others of its host.
pub(crate) struct SharedFds {
    pub(crate) segment: OwnedFd,
    pub(crate) liveness: OwnedFd,
}

type Result<T> = std::result::Result<T, Failure>;

/// Takes the descriptors of a rank.
type Keep<'k> = dyn FnMut(Rank, SharedFds) -> Result<()> + 'k;

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
    /// Passes this rank's descriptors to all `members` of its host, and those of each other member
    /// to `keep`.
    pub(crate) fn exchange_local(
        &mut self,
        members: &[Rank],
        own_fds: SharedFds,
        listener: Listener,
        keep: &mut Keep<'_>,
    ) -> Result<()> {
        let (rank, first) = (self.rank(), members[0]);
        if members.len() == 1 {
            return Ok(());
        }
        if first == rank {
            return self.distribute_fds(members, own_fds, listener, keep);
        }
        let failed = |error| no_shared_memory(rank, first, error);
        let stream = self.dial_peer(first, |record, _| unix::connect(&record.unix))?;
        unix::send_fds(&stream, &own_fds.fds(), self.deadline).map_err(failed)?;
        for group in members.chunks(RANKS_PER_GROUP) {
            self.wait_readable(stream.as_fd(), first)?;
            let received = SharedFds::receive(&stream, group.len(), self).map_err(failed)?;
            for (&peer, fds) in group.iter().zip(received).filter(|(peer, _)| **peer != rank) {
                keep(peer, fds)?;
            }
        }
        Ok(())
    }

    /// Carries out the first rank's part. It collects the descriptors of all members, group by
    /// group, and sends the descriptors of each group to all members.
    fn distribute_fds(
        &mut self,
        members: &[Rank],
        own_fds: SharedFds,
        listener: Listener,
        keep: &mut Keep<'_>,
    ) -> Result<()> {
        let (rank, streams) = (self.rank(), self.collect_streams(members, listener)?);
        let mut own_fds = Some(own_fds);
        for group in members.chunks(RANKS_PER_GROUP) {
            let mut all_fds = Vec::with_capacity(group.len());
            for peer in group {
                all_fds.push(match streams.get(peer) {
                    Some(stream) => self.receive_one(*peer, stream)?,
                    None => own_fds.take().ok_or_else(|| not_connected(rank, *peer))?,
                });
            }
            let fds: Vec<BorrowedFd<'_>> = all_fds.iter().flat_map(SharedFds::fds).collect();
            for (peer, stream) in &streams {
                let sent = unix::send_fds(stream, &fds, self.deadline);
                sent.map_err(|error| no_shared_memory(rank, *peer, error))?;
            }
            for (&peer, fds) in group.iter().zip(all_fds).filter(|(peer, _)| **peer != rank) {
                keep(peer, fds)?;
            }
        }
        Ok(())
    }

    /// Receives the descriptors of one rank.
    fn receive_one(&mut self, peer: Rank, stream: &Stream) -> Result<SharedFds> {
        self.wait_readable(stream.as_fd(), peer)?;
        let received = SharedFds::receive(stream, 1, self);
        let mut received = received.map_err(|error| no_shared_memory(self.rank(), peer, error))?;
        received.pop().ok_or_else(|| not_connected(self.rank(), peer))
    }

    /// Accepts the connections of the other members.
    fn collect_streams(&mut self, members: &[Rank], listener: Listener) -> Result<BTreeMap<Rank, Stream>> {
        let mut pool = HandshakePool::new(vec![listener], self.handshake_config());
        let mut streams = BTreeMap::new();
        let mut exhausted = None;
        while let Some(&missing) = members[1..].iter().find(|rank| !streams.contains_key(*rank)) {
            // The system refused descriptors, so the rank could not be accepted.
            self.check_deadline(missing).map_err(|late| exhausted.take().unwrap_or(late))?;
            for event in pool.wait(&[self.root.as_fd()], self.deadline)? {
                match event {
                    PoolEvent::Ready(_) => return Err(self.recv_root_failure()),
                    // A connection that has not proved the secret must not end the meeting.
                    PoolEvent::Unauthenticated(error) => {
                        let failure = unreachable(self.rank(), missing, &error);
                        if matches!(failure, Failure::OpenFiles { .. }) {
                            exhausted = Some(failure);
                        }
                    }
                    PoolEvent::Authenticated(stream, hello) => {
                        let rank = hello.rank as Rank;
                        if self.expects(&hello) && members[1..].contains(&rank) {
                            streams.entry(rank).or_insert(stream);
                        }
                    }
                }
            }
        }
        Ok(streams)
    }

    fn expects(&self, hello: &Hello) -> bool {
        hello.session == self.session && hello.purpose == Purpose::Control
    }
}

fn not_connected(rank: Rank, peer: Rank) -> Failure {
    Failure::Unreachable { rank, peer, what: "it passed no memory".to_owned() }
}

/// Descriptors that one rank passes.
const FDS_PER_RANK: usize = 2;
/// Ranks whose descriptors are open at a time, while their memory is being mapped.
const RANKS_PER_GROUP: usize = 64;
