//! Point-to-point transfers: messages between two ranks, outside any schedule.

use crate::config::send_recv_lane;
use crate::engine::Engine;
use crate::engine::exec::message::{link, match_header};
use crate::engine::mismatch::count_mismatch;
use crate::error::Result;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use unisono_reducers::{DType, Source, Store, Target, copy_to};

/// The direction of a transfer, as this rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// The buffer of a transfer.
#[derive(Debug)]
pub(crate) enum TransferBuffer<'a> {
    Send(&'a [u8]),
    Recv(&'a mut [u8]),
}

/// One message to or from one peer, with its progress.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    peer: Rank,
    buffer: TransferBuffer<'a>,
    desc: OpDesc,
    /// Offset of the message in the user buffer, in elements.
    offset: usize,
    /// Number of slices moved so far. An empty message has one slice.
    slices: usize,
    done: bool,
}

impl<'a> Transfer<'a> {
    pub(crate) fn send(peer: Rank, bytes: &'a [u8], call: OpDesc) -> Self {
        Self { peer, buffer: TransferBuffer::Send(bytes), desc: call, offset: 0, slices: 0, done: false }
    }

    pub(crate) fn recv(peer: Rank, bytes: &'a mut [u8], call: OpDesc) -> Self {
        Self { peer, buffer: TransferBuffer::Recv(bytes), desc: call, offset: 0, slices: 0, done: false }
    }

    /// Sets the offset of the message in the user buffer, in elements.
    pub(crate) fn with_offset(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn desc(&self) -> OpDesc {
        self.desc
    }

    /// Returns the element type and the bytes of a send.
    pub(super) fn send_data(&self) -> Option<(DType, &[u8])> {
        match &self.buffer {
            TransferBuffer::Send(bytes) => Some((self.desc.dtype()?, bytes)),
            TransferBuffer::Recv(_) => None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    fn direction(&self) -> Direction {
        match self.buffer {
            TransferBuffer::Send(_) => Direction::Send,
            TransferBuffer::Recv(_) => Direction::Recv,
        }
    }

    fn bytes(&self) -> usize {
        match &self.buffer {
            TransferBuffer::Send(bytes) => bytes.len(),
            TransferBuffer::Recv(bytes) => bytes.len(),
        }
    }
}

impl Engine {
    pub(super) fn run_transfers(&mut self, transfers: &mut [Transfer<'_>]) -> Result<()> {
        self.run_transfers_checked(transfers, &|_, _| Ok(()))
    }

    /// Runs transfers, and ends with the first error of `check`, which every round calls while some
    /// are open.
    #[inline]
    pub(super) fn run_transfers_checked(
        &mut self,
        transfers: &mut [Transfer<'_>],
        check: &dyn Fn(&Engine, &[Transfer<'_>]) -> Result<()>,
    ) -> Result<()> {
        copy_self_messages(self.fabric.rank, transfers);
        if let Some(first) = transfers.first() {
            self.watchdog.begin_op(first.desc);
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
            check(self, transfers)?;
            if moved {
                self.watchdog.progressed();
                continue;
            }
            // A peer may need the acknowledgement of a slot, or room on a link, before it gets to
            // its part of these transfers.
            self.send_acks();
            for link in self.fabric.links.iter_mut().flatten() {
                link.progress()?;
            }
            let blocked = transfers.iter().filter(|transfer| !transfer.done).map(|transfer| transfer.peer);
            self.wait_round(blocked)?;
        }
    }

    /// Moves as many slices as possible without waiting. Returns whether any moved.
    #[inline]
    fn advance_transfer(&mut self, transfer: &mut Transfer<'_>) -> Result<bool> {
        let slot_bytes = self.fabric.geometry.slot_bytes;
        let lane = send_recv_lane(self.channels.len());
        let link = link(&mut self.fabric.links, transfer.peer)?;
        let (rank, peer, slices_before) = (self.fabric.rank, transfer.peer, transfer.slices);
        let total = transfer.bytes();
        while !transfer.done {
            let tag = transfer.desc.tag(transfer.slices as u64);
            let start = (transfer.slices * slot_bytes).min(total);
            let end = (start + slot_bytes).min(total);
            let gone = match &mut transfer.buffer {
                TransferBuffer::Send(bytes) => {
                    let part = Source::from(&bytes[start..end]);
                    link.try_send(lane, &tag, end - start, &mut std::iter::once(part))?
                }
                TransferBuffer::Recv(bytes) => match match_header(link, lane, &tag, rank, peer)? {
                    None => false,
                    Some(arrived) if arrived != end - start => {
                        return Err(count_mismatch(peer, arrived, rank, end - start));
                    }
                    Some(_) => link.recv_into(lane, Target::from(&mut bytes[start..end]))?,
                },
            };
            if !gone {
                break;
            }
            // Each message counts once, at the rank that reads it.
            if transfer.direction() == Direction::Recv {
                self.traffic.add_bytes(end - start);
            }
            transfer.slices += 1;
            transfer.done = end == total;
        }
        Ok(transfer.slices > slices_before)
    }
}

/// Returns whether all transfers of the same peer and direction before the last one are done.
fn is_next(transfers: &[Transfer<'_>]) -> bool {
    // A link shows its oldest message only. A later receive would take a message of an earlier one
    // for a mismatch.
    let Some((last, earlier_transfers)) = transfers.split_last() else {
        return false;
    };
    earlier_transfers
        .iter()
        .all(|earlier| earlier.done || earlier.peer != last.peer || earlier.direction() != last.direction())
}

/// Copies the messages of this rank to itself, in order. The communicator has checked that they
/// match. A scatter of shares that the root keeps has a message without a receive.
fn copy_self_messages(rank: Rank, transfers: &mut [Transfer<'_>]) {
    let (mut sends, mut receives): (Vec<_>, Vec<_>) = transfers
        .iter_mut()
        .filter(|transfer| transfer.peer == rank)
        .partition(|transfer| transfer.direction() == Direction::Send);
    for (send, receive) in sends.iter_mut().zip(&mut receives) {
        if let (TransferBuffer::Send(bytes), TransferBuffer::Recv(buffer)) =
            (&send.buffer, &mut receive.buffer)
        {
            copy_to(Store::Cached, Target::from(&mut buffer[..]), Source::from(*bytes));
        }
        receive.done = true;
    }
    sends.iter_mut().for_each(|send| send.done = true);
}
