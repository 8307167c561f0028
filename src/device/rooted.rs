//! The collectives on GPUs that have a root.

use super::DeviceCommunicator;
use super::collectives::whole_buffer;
use crate::device::op::OpBuffer;
use crate::device::reduce_op::AnyReduceOp;
use crate::error::Result;
use crate::schedule::{Collective, Rank};
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, Stream};
use unisono_reducers::Element;
use unisono_transports::gpu::{Region, TypedRegion};

impl DeviceCommunicator {
    /// Copies the root's `buffer` into every rank's `buffer`, which is equally long.
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
    /// comm.broadcast(stream, buffer, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let buffer = TypedRegion(buffer);
        self.enqueue_collective::<T>(
            stream,
            Collective::Broadcast,
            None,
            root,
            whole_buffer(&buffer),
            whole_buffer(&buffer),
        )
    }

    /// Copies the root's `input` into every rank's `output`. Only the root gives an input.
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
    /// comm.broadcast_into(stream, (comm.rank() == 0).then_some(input), output, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast_into<T: Element>(
        &self,
        stream: &Stream,
        input: Option<&impl DeviceBuffer<T>>,
        output: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.check_root("input", root, input.is_some())?;
        let length = input.map_or(0, |input| input.len());
        self.arg_check().require_length_if(at_root, "input", length, output.len())?;
        let (input, output) = (input.map(|input| TypedRegion::<T>(input)), TypedRegion(output));
        let input_side = OpBuffer::even(optional_region(&input), 0, output.bytes());
        self.enqueue_collective::<T>(
            stream,
            Collective::Broadcast,
            None,
            root,
            input_side,
            whole_buffer(&output),
        )
    }

    /// Reduces `buffer` over all ranks. The root gets the result in place; other buffers stay as
    /// they are.
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
    /// comm.reduce(stream, buffer, unisono::Sum, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce<'a, T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<AnyReduceOp<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffer = TypedRegion(buffer);
        self.enqueue_collective::<T>(
            stream,
            Collective::Reduce,
            Some(reduction.into()),
            root,
            whole_buffer(&buffer),
            whole_buffer(&buffer),
        )
    }

    /// Reduces `input` over all ranks into `output`, which only the root gives.
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
    /// comm.reduce_into(stream, input, (comm.rank() == 0).then_some(output), unisono::Sum, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce_into<'a, T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: Option<&mut impl DeviceBufferMut<T>>,
        reduction: impl Into<AnyReduceOp<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.check_root("output", root, output.is_some())?;
        let length = output.as_ref().map_or(0, |output| output.len());
        self.arg_check().require_length_if(at_root, "output", length, input.len())?;
        let (input, output) = (TypedRegion(input), output.map(|output| TypedRegion::<T>(output)));
        let output_side = OpBuffer::even(optional_region(&output), 0, input.bytes());
        self.enqueue_collective::<T>(
            stream,
            Collective::Reduce,
            Some(reduction.into()),
            root,
            whole_buffer(&input),
            output_side,
        )
    }

    /// Concatenates the equally long inputs of all ranks, by rank, into `output`, which only the
    /// root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn gather<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: Option<&mut impl DeviceBufferMut<T>>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.check_root("output", root, output.is_some())?;
        let length = output.as_ref().map_or(0, |output| output.len());
        self.arg_check().require_length_if(at_root, "output", length, input.len() * self.size())?;
        let (input, output) = (TypedRegion(input), output.map(|output| TypedRegion::<T>(output)));
        let output_side = OpBuffer::even(optional_region(&output), 0, input.bytes());
        self.enqueue_collective::<T>(
            stream,
            Collective::Gather,
            None,
            root,
            whole_buffer(&input),
            output_side,
        )
    }

    /// Gathers as [`DeviceCommunicator::gather`] does, with the root's input already in its place
    /// in the output.
    ///
    /// The root gives the whole `buffer`, and each of the other ranks gives its share.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn gather_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let ((bytes, offset), buffer) = (self.share_and_offset::<T>(buffer, root)?, TypedRegion(buffer));
        let (input_side, output_side) =
            (OpBuffer::even(Some(&buffer), offset, bytes), OpBuffer::even(Some(&buffer), 0, bytes));
        self.enqueue_collective::<T>(stream, Collective::Gather, None, root, input_side, output_side)
    }

    /// Copies share i of `input`, which only the root gives, to rank i.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn scatter<T: Element>(
        &self,
        stream: &Stream,
        input: Option<&impl DeviceBuffer<T>>,
        output: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.check_root("input", root, input.is_some())?;
        let length = input.map_or(0, |input| input.len());
        self.arg_check().require_length_if(at_root, "input", length, output.len() * self.size())?;
        let (input, output) = (input.map(|input| TypedRegion::<T>(input)), TypedRegion(output));
        let input_side = OpBuffer::even(optional_region(&input), 0, output.bytes());
        self.enqueue_collective::<T>(
            stream,
            Collective::Scatter,
            None,
            root,
            input_side,
            whole_buffer(&output),
        )
    }

    /// Scatters as [`DeviceCommunicator::scatter`] does, in place.
    ///
    /// The root gives the whole `buffer` and keeps its share in place. The others give a buffer for
    /// their share.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn scatter_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let ((bytes, offset), buffer) = (self.share_and_offset::<T>(buffer, root)?, TypedRegion(buffer));
        let (input_side, output_side) =
            (OpBuffer::even(Some(&buffer), 0, bytes), OpBuffer::even(Some(&buffer), offset, bytes));
        self.enqueue_collective::<T>(stream, Collective::Scatter, None, root, input_side, output_side)
    }

    /// Returns the bytes of a share of a buffer that only the root gives whole, and the offset of
    /// this rank's share in it.
    fn share_and_offset<T: Element>(
        &self,
        buffer: &impl DeviceBuffer<T>,
        root: Rank,
    ) -> Result<(usize, usize)> {
        if self.rank() != root {
            return Ok((buffer.len() * size_of::<T>(), 0));
        }
        let bytes = self.share_bytes::<T>(buffer)?;
        Ok((bytes, root * bytes))
    }

    /// Returns true if this rank is the root, which must have given an `what`.
    fn check_root(&self, what: &str, root: Rank, given: bool) -> Result<bool> {
        self.arg_check().require_rank("root", root)?;
        self.arg_check().require_at_root(what, root, given)?;
        Ok(self.rank() == root)
    }
}

fn optional_region<'a, T: Element>(buffer: &'a Option<TypedRegion<'_, T>>) -> Option<&'a dyn Region> {
    buffer.as_ref().map(|buffer| buffer as &dyn Region)
}
