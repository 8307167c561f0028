//! The operation that is measured, on device buffers.

use crate::perf::op_case::{OpCase, OpKind};
use std::ops::Range;
use unisono::device::{Buffer, DeviceCommunicator, Stream};
use unisono::{Element, Result};

/// Calls it from all of `input` into the elements of `output` in `range`.
pub(super) fn call<T: Element>(
    test: &OpCase,
    comm: &DeviceCommunicator,
    stream: &Stream,
    input: &Buffer<T>,
    output: &mut Buffer<T>,
    range: Range<usize>,
) -> Result<()> {
    let (rank, ranks, root) = (comm.rank(), comm.size(), test.root);
    let (at_root, reduction) = (rank == root, test.reduction::<T>(rank));
    let output = &mut output.view_mut(range);
    match test.kind {
        OpKind::AllReduce => comm.all_reduce_into(stream, input, output, reduction),
        OpKind::AllGather => comm.all_gather(stream, input, output),
        OpKind::ReduceScatter => comm.reduce_scatter(stream, input, output, reduction),
        OpKind::Broadcast => comm.broadcast_into(stream, at_root.then_some(input), output, root),
        OpKind::Reduce => comm.reduce_into(stream, input, at_root.then_some(output), reduction, root),
        OpKind::Gather => comm.gather(stream, input, at_root.then_some(output), root),
        OpKind::Scatter => comm.scatter(stream, at_root.then_some(input), output, root),
        OpKind::AllToAll => comm.all_to_all(stream, input, output),
        OpKind::SendRecv => comm.group(stream, |group| {
            group.send(input, (rank + 1) % ranks).recv(output, (rank + ranks - 1) % ranks);
        }),
        OpKind::Barrier => comm.barrier(stream),
    }
}

/// Runs the operation in place on the elements of `buffer` in `range`.
///
/// The input begins at [`OpCase::in_place_offsets`] within that part.
pub(super) fn call_in_place<T: Element>(
    test: &OpCase,
    comm: &DeviceCommunicator,
    stream: &Stream,
    buffer: &mut Buffer<T>,
    range: Range<usize>,
) -> Result<()> {
    let reduction = test.reduction::<T>(comm.rank());
    let buffer = &mut buffer.view_mut(range);
    match test.kind {
        OpKind::AllReduce => comm.all_reduce(stream, buffer, reduction),
        OpKind::AllGather => comm.all_gather_in_place(stream, buffer),
        OpKind::ReduceScatter => comm.reduce_scatter_in_place(stream, buffer, reduction),
        OpKind::Broadcast => comm.broadcast(stream, buffer, test.root),
        OpKind::Reduce => comm.reduce(stream, buffer, reduction, test.root),
        OpKind::Gather => comm.gather_in_place(stream, buffer, test.root),
        OpKind::Scatter => comm.scatter_in_place(stream, buffer, test.root),
        OpKind::AllToAll => comm.all_to_all_in_place(stream, buffer),
        OpKind::SendRecv | OpKind::Barrier => Ok(()),
    }
}
