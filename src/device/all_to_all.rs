//! Variants of the all-to-all exchange on GPUs: in place, and with uneven shares.

use crate::communicator::displacements;
use crate::device::DeviceCommunicator;
use crate::device::collectives::make_op;
use crate::device::launch::LaunchKind;
use crate::device::op::OpBuffer;
use crate::device::p2p::UploadedGroup;
use crate::device::p2p_program::Transfer;
use crate::engine::Direction;
use crate::error::Result;
use crate::op_desc::{OpDesc, OpKind};
use crate::schedule::Collective;
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, Share, Stream};
use unisono_reducers::Element;
use unisono_transports::gpu::{Operand, OperandMemory, Region, ShareTable, TypedRegion};

impl DeviceCommunicator {
    /// Exchanges shares as [`DeviceCommunicator::all_to_all`] does, within one buffer.
    ///
    /// An algorithm that reads every share before it overwrites it works within the buffer. For any
    /// other algorithm, the buffer is first copied to other memory, which is kept for later calls.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn all_to_all_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        let (bytes, buffer) = (self.share_bytes::<T>(buffer)?, TypedRegion(buffer));
        let buffer_side = OpBuffer::even(Some(&buffer), 0, bytes);
        let job = make_op::<T>(Collective::AllToAll, None, 0, buffer_side, buffer_side);
        self.shared.require_kernels(&job)?;
        self.shared.enqueue_with(|state| {
            let choice = self.shared.choose(state, &job)?;
            if choice.plan.runs_in_place {
                return self.shared.enqueue_choice(state, stream, &job, &choice);
            }
            let memory = state.aside(self.gpu(), buffer.bytes())?;
            let aside = TypedRegion(&*memory);
            // The launch copies when the operation before this one has read what was copied last.
            let copy_side = OpBuffer { copied_from: Some(&buffer), ..OpBuffer::even(Some(&aside), 0, bytes) };
            let job = make_op::<T>(Collective::AllToAll, None, 0, copy_side, buffer_side);
            self.shared.enqueue_locked(state, stream, &job)
        })
    }

    /// Sends rank i the next `send_counts[i]` elements of `input`.
    ///
    /// `output` receives `recv_counts[i]` elements from each rank i, by rank.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. If the counts of two ranks differ, the error names
    /// both ranks and both counts. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn all_to_all_v<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        send_counts: &[usize],
        output: &mut impl DeviceBufferMut<T>,
        recv_counts: &[usize],
    ) -> Result<()> {
        let (args, rank) = (self.arg_check(), self.rank());
        args.require_length("send_counts", send_counts.len(), self.size())?;
        args.require_length("recv_counts", recv_counts.len(), self.size())?;
        args.require_length("input", input.len(), args.total_count(send_counts)?)?;
        args.require_length("output", output.len(), args.total_count(recv_counts)?)?;
        args.require_length("recv_counts[own rank]", recv_counts[rank], send_counts[rank])?;
        let tables = [send_counts, recv_counts].map(|counts| displacements(counts, size_of::<T>()));
        let (input, output) = (TypedRegion(input), TypedRegion(output));
        self.shared.enqueue_with(|state| {
            let ready = state.groups.get_or_upload(&self.shared, all_pairs(&tables), Vec::new(), || {
                self.upload_shares(&tables)
            })?;
            let (input_operand, output_operand) = (
                uneven_operand(&input, &ready.sends, &ready),
                uneven_operand(&output, &ready.receives, &ready),
            );
            let call = OpDesc::new(state.sequence(), OpKind::AllToAllV, T::DTYPE, None, 0, 0).on_gpu(None);
            let (work, order) = (LaunchKind::Program(&ready.uploaded), self.shared.group_launch_args(call));
            self.shared.launch(state, stream, work, &order, [&input_operand, &output_operand])?;
            Ok(call)
        })
    }

    /// Uploads the table of shares that are sent to each rank and received from each rank.
    fn upload_shares(
        &self,
        tables: &[Vec<(usize, usize)>; 2],
    ) -> unisono_transports::Result<[ShareTable; 2]> {
        let stride = self.shared.endpoint.memory().layout().geometry().slot_bytes as u64;
        let share =
            |&(start, bytes): &(usize, usize)| Share { start: start as u64, bytes: bytes as u64, stride };
        let share_table = |table: &Vec<_>| {
            ShareTable::new(&self.shared.endpoint, &table.iter().map(share).collect::<Vec<_>>())
        };
        Ok([share_table(&tables[0])?, share_table(&tables[1])?])
    }
}

/// Returns a send to every rank, then a receive from every rank.
fn all_pairs([sends, receives]: &[Vec<(usize, usize)>; 2]) -> Vec<Transfer> {
    let transfers_of = |table: &[(usize, usize)], direction| {
        let transfer =
            move |(peer, &(_, bytes)): (usize, &(usize, usize))| Transfer { direction, peer, bytes };
        table.iter().enumerate().map(transfer).collect::<Vec<_>>()
    };
    [transfers_of(sends, Direction::Send), transfers_of(receives, Direction::Recv)].concat()
}

fn uneven_operand<'o>(region: &'o dyn Region, shares: &'o ShareTable, ready: &UploadedGroup) -> Operand<'o> {
    Operand {
        memory: OperandMemory::UnevenShares { region, offset: 0, shares },
        chunks_per_share: ready.slices,
        copied_from: None,
    }
}
