//! Exchanges between every two ranks beside the plain one: within a buffer, and of uneven shares.

use super::DeviceCommunicator;
use super::collectives::job;
use super::enqueue::Work;
use super::group::Ready;
use super::job::Side;
use super::transfer::Transfer;
use crate::call::{Call, Kind};
use crate::communicator::places;
use crate::engine::Direction;
use crate::error::Result;
use crate::schedule::Collective;
use unisono_cuda::Element;
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, Share, Stream};
use unisono_transports::p2p::{Memory, Operand, Region, Shares, Typed};

impl DeviceCommunicator {
    /// As [`DeviceCommunicator::all_to_all`] within one buffer; its contents are copied aside first.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_to_all_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        let bytes = self.share_bytes::<T>(buffer)?;
        self.shared.carry_out(|state| {
            let mut aside = stream.room::<T>(buffer.len())?;
            self.shared.follow(stream)?;
            stream.copy(&mut aside, buffer)?;
            let (input, output) = (Typed(&aside), Typed(buffer));
            let (from, into) = (Side::even(Some(&input), 0, bytes), Side::even(Some(&output), 0, bytes));
            self.shared.enqueue_in(state, stream, &job::<T>(Collective::AllToAll, None, 0, from, into))
        })
    }

    /// Gives rank i the next `send_counts[i]` elements of `input`; `output` gets `recv_counts[i]` from rank i.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. Two ranks whose counts differ are named with both.
    pub fn all_to_all_v<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        send_counts: &[usize],
        output: &mut impl DeviceBufferMut<T>,
        recv_counts: &[usize],
    ) -> Result<()> {
        let (asked, rank) = (self.base(), self.rank());
        asked.same_length("send_counts", send_counts.len(), self.ranks())?;
        asked.same_length("recv_counts", recv_counts.len(), self.ranks())?;
        asked.same_length("input", input.len(), asked.total(send_counts)?)?;
        asked.same_length("output", output.len(), asked.total(recv_counts)?)?;
        asked.same_length("recv_counts[own rank]", recv_counts[rank], send_counts[rank])?;
        let tables = [send_counts, recv_counts].map(|counts| places(counts, size_of::<T>()));
        let (input, output) = (Typed(input), Typed(output));
        self.shared.carry_out(|state| {
            let ready =
                state.groups.ready(&self.shared, transfers(&tables), Vec::new(), || self.shares(&tables))?;
            let (from, into) =
                (uneven(&input, &ready.sends, &ready), uneven(&output, &ready.receives, &ready));
            let call = Call::new(state.sequence(), Kind::AllToAllV, T::DTYPE, None, 0, 0).on_gpus(None);
            let (work, order) = (Work::Program(&ready.uploaded), self.shared.group_order(call));
            self.shared.launch(state, stream, work, &order, [&from, &into])?;
            Ok(call)
        })
    }

    /// What goes to each rank, and what comes from each, as shares of the two buffers.
    fn shares(&self, tables: &[Vec<(usize, usize)>; 2]) -> unisono_transports::Result<[Shares; 2]> {
        let stride = self.shared.endpoint.arena().layout().sizes().slot_bytes as u64;
        let share =
            |&(start, bytes): &(usize, usize)| Share { start: start as u64, bytes: bytes as u64, stride };
        let of = |table: &Vec<_>| Shares::new(self.gpu(), &table.iter().map(share).collect::<Vec<_>>());
        Ok([of(&tables[0])?, of(&tables[1])?])
    }
}

/// A send to every rank, then a receive from every rank.
fn transfers([sends, receives]: &[Vec<(usize, usize)>; 2]) -> Vec<Transfer> {
    let of = |table: &[(usize, usize)], direction| {
        let transfer =
            move |(peer, &(_, bytes)): (usize, &(usize, usize))| Transfer { direction, peer, bytes };
        table.iter().enumerate().map(transfer).collect::<Vec<_>>()
    };
    [of(sends, Direction::Send), of(receives, Direction::Recv)].concat()
}

fn uneven<'o>(region: &'o dyn Region, shares: &'o Shares, ready: &Ready) -> Operand<'o> {
    Operand { memory: Memory::Uneven { region, offset: 0, shares }, blocks: ready.slices }
}
