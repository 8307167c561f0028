//! Sends and receives: messages between two ranks, outside any schedule.

use super::stage::{head, link};
use super::{Engine, lanes_for};
use crate::call::Call;
use crate::error::Result;
use crate::schedule::Rank;
use unisono_cuda::{DType, Source, Store, Target, copy_to};

/// Which way a transfer goes, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// The memory of a transfer.
#[derive(Debug)]
pub(crate) enum Side<'a> {
    Send(&'a [u8]),
    Recv(&'a mut [u8]),
}

/// One message to or from one peer, as far as it has got.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    peer: Rank,
    side: Side<'a>,
    call: Call,
    /// Elements before it in the buffer that it is a part of.
    offset: usize,
    /// Slices moved so far; the first one goes even when the message is empty.
    slices: usize,
    done: bool,
}

impl<'a> Transfer<'a> {
    pub(crate) fn send(peer: Rank, bytes: &'a [u8], call: Call) -> Self {
        Self { peer, side: Side::Send(bytes), call, offset: 0, slices: 0, done: false }
    }

    pub(crate) fn recv(peer: Rank, bytes: &'a mut [u8], call: Call) -> Self {
        Self { peer, side: Side::Recv(bytes), call, offset: 0, slices: 0, done: false }
    }

    /// The part of a buffer before which there are `offset` elements.
    pub(crate) fn at(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn call(&self) -> Call {
        self.call
    }

    /// What is sent, and of which type.
    pub(super) fn given(&self) -> Option<(DType, &[u8])> {
        match &self.side {
            Side::Send(bytes) => Some((self.call.dtype()?, bytes)),
            Side::Recv(_) => None,
        }
    }

    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    fn direction(&self) -> Direction {
        match self.side {
            Side::Send(_) => Direction::Send,
            Side::Recv(_) => Direction::Recv,
        }
    }

    fn bytes(&self) -> usize {
        match &self.side {
            Side::Send(bytes) => bytes.len(),
            Side::Recv(bytes) => bytes.len(),
        }
    }
}

impl Engine {
    pub(super) fn run_transfers(&mut self, transfers: &mut [Transfer<'_>]) -> Result<()> {
        match_own(self.mesh.rank, transfers);
        if let Some(first) = transfers.first() {
            self.watch.begin(first.call);
        }
        loop {
            let mut moved = false;
            for index in 0..transfers.len() {
                if !transfers[index].done && is_next(&transfers[..=index]) {
                    moved |= self.advance_transfer(&mut transfers[index])?;
                }
            }
            if transfers.iter().all(|transfer| transfer.done) {
                return Ok(());
            }
            if moved {
                self.watch.moved();
                continue;
            }
            self.show_seen();
            for link in self.mesh.links.iter_mut().flatten() {
                link.progress()?;
            }
            let blocked = transfers.iter().filter(|transfer| !transfer.done).map(|transfer| transfer.peer);
            self.watch.waited(&mut *self.mesh.control, &mut *self.mesh.pace, blocked)?;
        }
    }

    /// Moves as many slices as go without waiting.
    fn advance_transfer(&mut self, transfer: &mut Transfer<'_>) -> Result<bool> {
        let slot_bytes = self.mesh.geometry.slot_bytes;
        let lane = lanes_for(self.channels.len()) - 1;
        let link = link(&mut self.mesh.links, transfer.peer)?;
        let (rank, peer, before) = (self.mesh.rank, transfer.peer, transfer.slices);
        let total = transfer.bytes();
        while !transfer.done {
            let tag = transfer.call.tag(transfer.slices as u64);
            let start = (transfer.slices * slot_bytes).min(total);
            let end = (start + slot_bytes).min(total);
            let gone = match &mut transfer.side {
                Side::Send(bytes) => {
                    let part = Source::from(&bytes[start..end]);
                    link.try_send(lane, &tag, end - start, &mut std::iter::once(part))?
                }
                Side::Recv(bytes) => match head(link, lane, &tag, rank, peer)? {
                    None => false,
                    Some(arrived) if arrived != end - start => {
                        return Err(super::operand::wrong_length(peer, arrived, rank, end - start));
                    }
                    Some(_) => link.take(lane, Target::from(&mut bytes[start..end]))?,
                },
            };
            if !gone {
                break;
            }
            if transfer.direction() == Direction::Recv {
                self.traffic.moved(end - start);
            }
            transfer.slices += 1;
            transfer.done = end == total;
        }
        Ok(transfer.slices > before)
    }
}

/// Whether the last of `transfers` has no unfinished one of its peer and direction before it.
fn is_next(transfers: &[Transfer<'_>]) -> bool {
    let Some((last, before)) = transfers.split_last() else {
        return false;
    };
    before
        .iter()
        .all(|earlier| earlier.done || earlier.peer != last.peer || earlier.direction() != last.direction())
}

/// Copies what this rank sends to itself, in order; the communicator has paired lengths and numbers.
fn match_own(rank: Rank, transfers: &mut [Transfer<'_>]) {
    let (mut sends, mut receives): (Vec<_>, Vec<_>) = transfers
        .iter_mut()
        .filter(|transfer| transfer.peer == rank)
        .partition(|transfer| transfer.direction() == Direction::Send);
    for (send, receive) in sends.iter_mut().zip(&mut receives) {
        if let (Side::Send(from), Side::Recv(into)) = (&send.side, &mut receive.side) {
            copy_to(Store::Cached, Target::from(&mut into[..]), Source::from(*from));
        }
        (send.done, receive.done) = (true, true);
    }
}
