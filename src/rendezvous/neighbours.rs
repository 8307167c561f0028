//! Ranks of one host: everybody's memory and lifeline goes to the first of them, and from there to all.

use super::failure::RendezvousError as Failure;
use super::peers::{Meeting, unreachable};
use crate::schedule::Rank;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use unisono_transports::auth::{Claims, Purpose};
use unisono_transports::listener::Listener;
use unisono_transports::porch::{News, Porch};
use unisono_transports::socket::Stream;
use unisono_transports::{Error as TransportError, unix};

/// What a rank hands to its neighbours.
pub(super) struct Gift {
    pub(super) segment: OwnedFd,
    pub(super) lifeline: OwnedFd,
}

/// A neighbour that has come, and its gift once it has given it.
struct Guest {
    rank: Rank,
    stream: Stream,
    gift: Option<Gift>,
}

type Result<T> = std::result::Result<T, Failure>;

impl Gift {
    fn fds(&self) -> [BorrowedFd<'_>; GIFT_FDS] {
        [self.segment.as_fd(), self.lifeline.as_fd()]
    }

    /// From so many descriptors that a neighbour sent.
    fn receive(
        stream: &Stream,
        count: usize,
        meeting: &Meeting<'_>,
    ) -> std::result::Result<Vec<Self>, TransportError> {
        let mut fds = unix::recv_fds(stream, GIFT_FDS * count, meeting.deadline)?.into_iter();
        let gift = || Some(Gift { segment: fds.next()?, lifeline: fds.next()? });
        Ok(std::iter::from_fn(gift).collect())
    }
}

impl Meeting<'_> {
    /// Gives this rank's gift to all `members` of its host and gets theirs, in the order of the ranks; this
    /// rank's own comes back as well.
    pub(super) fn exchange(&mut self, members: &[Rank], own: Gift, door: Listener) -> Result<Vec<Gift>> {
        let (rank, first) = (self.rank(), members[0]);
        match members.len() {
            1 => Ok(vec![own]),
            _ if first == rank => self.share_out(members, own, door),
            count => {
                let failed = |error| unreachable(rank, first, &error);
                let stream = self.dial(first, |record, _| unix::dial(&record.unix))?;
                unix::send_fds(&stream, &own.fds(), self.deadline).map_err(failed)?;
                self.await_ready(stream.as_fd(), first)?;
                Gift::receive(&stream, count, self).map_err(failed)
            }
        }
    }

    /// The first rank's part: collects all gifts, and hands all of them to everybody.
    fn share_out(&mut self, members: &[Rank], own: Gift, door: Listener) -> Result<Vec<Gift>> {
        let guests = self.collect(members, door)?;
        let (streams, others): (Vec<_>, Vec<_>) =
            guests.into_iter().filter_map(|guest| Some(((guest.rank, guest.stream), guest.gift?))).unzip();
        let gifts: Vec<Gift> = std::iter::once(own).chain(others).collect();
        let fds: Vec<BorrowedFd<'_>> = gifts.iter().flat_map(Gift::fds).collect();
        for (peer, stream) in &streams {
            let sent = unix::send_fds(stream, &fds, self.deadline);
            sent.map_err(|error| unreachable(self.rank(), *peer, &error))?;
        }
        Ok(gifts)
    }

    /// The other members with their gifts, by rank.
    fn collect(&mut self, members: &[Rank], door: Listener) -> Result<Vec<Guest>> {
        let mut porch = Porch::new(vec![door], self.terms());
        let mut guests: Vec<Guest> = Vec::new();
        let missing = |guests: &[Guest]| {
            let given = |rank| guests.iter().any(|guest| guest.rank == rank && guest.gift.is_some());
            members[1..].iter().copied().find(|&rank| !given(rank))
        };
        while let Some(late) = missing(&guests) {
            self.check_time(late)?;
            let waiting: Vec<usize> =
                (0..guests.len()).filter(|&index| guests[index].gift.is_none()).collect();
            let root = std::iter::once(self.root.as_fd());
            let watched: Vec<_> =
                root.chain(waiting.iter().map(|&index| guests[index].stream.as_fd())).collect();
            for piece in porch.wait(&watched, self.deadline)? {
                match piece {
                    News::Ready(0) => return Err(self.hear_root()),
                    News::Ready(index) => {
                        let guest = &mut guests[waiting[index - 1]];
                        let gift = Gift::receive(&guest.stream, 1, self);
                        guest.gift =
                            gift.map_err(|error| unreachable(self.rank(), guest.rank, &error))?.pop();
                    }
                    // Whoever is not expected is a stranger, and strangers do not end a meeting.
                    News::Stranger(_) => {}
                    News::Guest(stream, claims) => {
                        let rank = claims.rank as Rank;
                        let is_new = guests.iter().all(|guest| guest.rank != rank);
                        if self.expects(&claims) && members[1..].contains(&rank) && is_new {
                            guests.push(Guest { rank, stream, gift: None });
                        }
                    }
                }
            }
        }
        guests.sort_by_key(|guest| guest.rank);
        Ok(guests)
    }

    fn expects(&self, claims: &Claims) -> bool {
        claims.session == self.session && claims.purpose == Purpose::Control
    }
}

/// Descriptors of one gift.
const GIFT_FDS: usize = 2;
