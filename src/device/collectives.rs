//! The collectives on GPUs, enqueued on a stream.

use super::DeviceCommunicator;
use crate::communicator::{ArgCheck, digest_words, displacements};
use crate::device::op::{DeviceOp, OpBuffer};
use crate::device::reduce_op::AnyReduceOp;
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::schedule::{Collective, Rank};
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, Stream};
use unisono_reducers::Element;
use unisono_transports::gpu::{Region, TypedRegion};

impl DeviceCommunicator {
    /// Reduces `buffer` over all ranks. Every rank gets the result in place.
    ///
    /// `buffer` has the same number of elements on all ranks.
    ///
    /// # Errors
    /// If arguments are refused, the communicator stays as it is. All other errors poison it. If
    /// the operation fails after the call has returned, [`DeviceCommunicator::check`] and every
    /// later call return the error. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     buffer: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.all_reduce(stream, buffer, unisono::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_reduce<'a, T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<AnyReduceOp<'a, T>>,
    ) -> Result<()> {
        let buffer = TypedRegion(buffer);
        self.enqueue_collective::<T>(
            stream,
            Collective::AllReduce,
            Some(reduction.into()),
            0,
            whole_buffer(&buffer),
            whole_buffer(&buffer),
        )
    }

    /// Reduces `input` over all ranks. Every rank gets the result in `output`, which is equally
    /// long.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     input: &Buffer<f32>,
    /// #     output: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.all_reduce_into(stream, input, output, unisono::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_reduce_into<'a, T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<AnyReduceOp<'a, T>>,
    ) -> Result<()> {
        self.arg_check().require_length("input", input.len(), output.len())?;
        let (input, output) = (TypedRegion(input), TypedRegion(output));
        self.enqueue_collective::<T>(
            stream,
            Collective::AllReduce,
            Some(reduction.into()),
            0,
            whole_buffer(&input),
            whole_buffer(&output),
        )
    }

    /// Concatenates the inputs of all ranks, by rank, into every rank's `output`.
    ///
    /// `input` has n elements, `output` has n × [`size`](DeviceCommunicator::size).
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     input: &Buffer<f32>,
    /// #     output: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.all_gather(stream, input, output)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_gather<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        self.arg_check().require_length("output", output.len(), input.len() * self.size())?;
        let (input, output) = (TypedRegion(input), TypedRegion(output));
        let output_side = OpBuffer::even(Some(&output), 0, input.bytes());
        self.enqueue_collective::<T>(
            stream,
            Collective::AllGather,
            None,
            0,
            whole_buffer(&input),
            output_side,
        )
    }

    /// Concatenates one share of every rank in `buffer`, which holds this rank's share at its
    /// place.
    ///
    /// `buffer` has n × [`size`](DeviceCommunicator::size) elements.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     buffer: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.all_gather_in_place(stream, buffer)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_gather_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        let (bytes, buffer) = (self.share_bytes::<T>(buffer)?, TypedRegion(buffer));
        let input_side = OpBuffer::even(Some(&buffer), self.rank() * bytes, bytes);
        let output_side = OpBuffer::even(Some(&buffer), 0, bytes);
        self.enqueue_collective::<T>(stream, Collective::AllGather, None, 0, input_side, output_side)
    }

    /// Concatenates inputs of different lengths, by rank, into every rank's `output`.
    ///
    /// Rank i gives `counts[i]` elements. `counts` is the same on all ranks, and `output` is as
    /// long as the sum of all counts.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     input: &Buffer<f32>,
    /// #     output: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.all_gather_v(stream, input, output, &[100, 200])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_gather_v<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
        counts: &[usize],
    ) -> Result<()> {
        self.arg_check().require_length("counts", counts.len(), self.size())?;
        self.arg_check().require_length("input", input.len(), counts[self.rank()])?;
        self.arg_check().require_length("output", output.len(), self.arg_check().total_count(counts)?)?;
        let table = displacements(counts, size_of::<T>());
        let longest = table.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let (input, output) = (TypedRegion(input), TypedRegion(output));
        let output_side = OpBuffer { share_table: Some(&table), ..OpBuffer::even(Some(&output), 0, longest) };
        let job = make_op::<T>(Collective::AllGather, None, 0, whole_buffer(&input), output_side);
        self.shared
            .enqueue(stream, &DeviceOp { kind: OpKind::AllGatherV, count: digest_words(counts), ..job })
    }

    /// Reduces `input` over all ranks. Rank i gets share i of the result in `output`.
    ///
    /// `output` has n elements, `input` has n × [`size`](DeviceCommunicator::size).
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     input: &Buffer<f32>,
    /// #     output: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.reduce_scatter(stream, input, output, unisono::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce_scatter<'a, T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<AnyReduceOp<'a, T>>,
    ) -> Result<()> {
        self.arg_check().require_length("input", input.len(), output.len() * self.size())?;
        let (input, output) = (TypedRegion(input), TypedRegion(output));
        let input_side = OpBuffer::even(Some(&input), 0, output.bytes());
        self.enqueue_collective::<T>(
            stream,
            Collective::ReduceScatter,
            Some(reduction.into()),
            0,
            input_side,
            whole_buffer(&output),
        )
    }

    /// Reduces `buffer` over all ranks. Share i of the result replaces share i of rank i's
    /// `buffer`.
    ///
    /// The other shares stay as they were.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     buffer: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.reduce_scatter_in_place(stream, buffer, unisono::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce_scatter_in_place<'a, T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<AnyReduceOp<'a, T>>,
    ) -> Result<()> {
        let (bytes, buffer) = (self.share_bytes::<T>(buffer)?, TypedRegion(buffer));
        let input_side = OpBuffer::even(Some(&buffer), 0, bytes);
        let output_side = OpBuffer::even(Some(&buffer), self.rank() * bytes, bytes);
        self.enqueue_collective::<T>(
            stream,
            Collective::ReduceScatter,
            Some(reduction.into()),
            0,
            input_side,
            output_side,
        )
    }

    /// Copies share i of every rank's `input` to rank i's `output`, where the shares are ordered by
    /// sender.
    ///
    /// `input` and `output` have n × [`size`](DeviceCommunicator::size) elements.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```no_run
    /// # use unisono::device::{Buffer, DeviceCommunicator, Stream};
    /// # fn example(
    /// #     comm: &DeviceCommunicator,
    /// #     stream: &Stream,
    /// #     input: &Buffer<f32>,
    /// #     output: &mut Buffer<f32>,
    /// # ) -> unisono::Result<()> {
    /// comm.all_to_all(stream, input, output)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_to_all<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        let bytes = self.share_bytes::<T>(input)?;
        self.arg_check().require_length("output", output.len(), input.len())?;
        let (input, output) = (TypedRegion(input), TypedRegion(output));
        let (input_side, output_side) =
            (OpBuffer::even(Some(&input), 0, bytes), OpBuffer::even(Some(&output), 0, bytes));
        self.enqueue_collective::<T>(stream, Collective::AllToAll, None, 0, input_side, output_side)
    }

    /// Delays all later work on `stream` until the streams of all ranks have reached the barrier.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::all_reduce`].
    ///
    /// ```no_run
    /// # use unisono::device::{DeviceCommunicator, Stream};
    /// # fn example(comm: &DeviceCommunicator, stream: &Stream) -> unisono::Result<()> {
    /// comm.barrier(stream)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let nothing = OpBuffer::even(None, 0, 0);
        self.enqueue_collective::<u8>(stream, Collective::Barrier, None, 0, nothing, nothing)
    }

    pub(super) fn enqueue_collective<T: Element>(
        &self,
        stream: &Stream,
        collective: Collective,
        reduction: Option<AnyReduceOp<'_, T>>,
        root: Rank,
        input: OpBuffer<'_>,
        output: OpBuffer<'_>,
    ) -> Result<()> {
        self.arg_check().require_rank("root", root)?;
        let mut op = make_op::<T>(collective, reduction, root, input, output);
        if let Some(reduction) = op.op {
            let checked = reduction.for_dtype(T::DTYPE);
            op.op = Some(checked.map_err(|error| self.shared.host_comm.attach_rank(error))?);
        }
        self.shared.enqueue(stream, &op)
    }

    /// Starts the argument checks of a call.
    pub(super) fn arg_check(&self) -> ArgCheck<'_> {
        self.shared.host_comm.arg_check_unnumbered()
    }

    /// Returns the bytes of one rank's share of a buffer.
    pub(super) fn share_bytes<T: Element>(&self, buffer: &impl DeviceBuffer<T>) -> Result<usize> {
        Ok(self.arg_check().share_count(buffer.len())? * size_of::<T>())
    }
}

/// Returns all of a buffer as one share.
pub(super) fn whole_buffer(buffer: &dyn Region) -> OpBuffer<'_> {
    OpBuffer::even(Some(buffer), 0, buffer.bytes())
}

pub(super) fn make_op<'a, T: Element>(
    collective: Collective,
    combine: Option<AnyReduceOp<'a, T>>,
    root: Rank,
    input: OpBuffer<'a>,
    output: OpBuffer<'a>,
) -> DeviceOp<'a> {
    let (kind, count) = (OpKind::Collective(collective), (input.share_bytes / size_of::<T>()) as u64);
    let reduction = combine.as_ref().map(|combine| combine.op);
    let user_op = combine.and_then(|combine| combine.user_op);
    DeviceOp { kind, collective, dtype: T::DTYPE, op: reduction, user_op, root, count, input, output }
}
