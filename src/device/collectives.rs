//! The operations, typed: as those of the CPU, but enqueued on a stream.

use super::DeviceCommunicator;
use super::combine::Combine;
use super::job::{Job, Side};
use crate::call::Kind;
use crate::communicator::{Asked, digest, places};
use crate::error::Result;
use crate::schedule::{Collective, Rank};
use unisono_cuda::Element;
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, Stream};
use unisono_transports::p2p::{Region, Typed};

impl DeviceCommunicator {
    /// Reduces `buffer` over all ranks; every rank gets the result in place.
    ///
    /// # Errors
    /// Misuse leaves the communicator good, as does what is unavailable; all else poisons it. What goes wrong after the
    /// call has returned, [`DeviceCommunicator::check`] says.
    pub fn all_reduce<'a, T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Combine<'a, T>>,
    ) -> Result<()> {
        let buffer = Typed(buffer);
        self.run::<T>(
            stream,
            Collective::AllReduce,
            Some(reduction.into()),
            0,
            whole(&buffer),
            whole(&buffer),
        )
    }

    /// Reduces `input` over all ranks; every rank gets the result in `output`, equally long.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_reduce_into<'a, T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Combine<'a, T>>,
    ) -> Result<()> {
        self.base().same_length("input", input.len(), output.len())?;
        let (input, output) = (Typed(input), Typed(output));
        self.run::<T>(stream, Collective::AllReduce, Some(reduction.into()), 0, whole(&input), whole(&output))
    }

    /// Puts the inputs of all ranks, equally long, one after the other into every rank's `output`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_gather<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        self.base().same_length("output", output.len(), input.len() * self.ranks())?;
        let (input, output) = (Typed(input), Typed(output));
        let into = Side::even(Some(&output), 0, input.bytes());
        self.run::<T>(stream, Collective::AllGather, None, 0, whole(&input), into)
    }

    /// As [`DeviceCommunicator::all_gather`] with this rank's input already in its place in `buffer`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_gather_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        let (bytes, buffer) = (self.share_bytes::<T>(buffer)?, Typed(buffer));
        let from = Side::even(Some(&buffer), self.rank() * bytes, bytes);
        let into = Side::even(Some(&buffer), 0, bytes);
        self.run::<T>(stream, Collective::AllGather, None, 0, from, into)
    }

    /// Puts the inputs of all ranks one after the other into every rank's `output`; rank i gives `counts[i]`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_gather_v<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
        counts: &[usize],
    ) -> Result<()> {
        self.base().same_length("counts", counts.len(), self.ranks())?;
        self.base().same_length("input", input.len(), counts[self.rank()])?;
        self.base().same_length("output", output.len(), self.base().total(counts)?)?;
        let table = places(counts, size_of::<T>());
        let longest = table.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let (input, output) = (Typed(input), Typed(output));
        let into = Side { table: Some(&table), ..Side::even(Some(&output), 0, longest) };
        let job = job::<T>(Collective::AllGather, None, 0, whole(&input), into);
        self.shared.enqueue(stream, &Job { kind: Kind::AllGatherV, count: digest(counts), ..job })
    }

    /// Reduces `input` over all ranks; rank i gets the i-th share of the result in `output`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce_scatter<'a, T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Combine<'a, T>>,
    ) -> Result<()> {
        self.base().same_length("input", input.len(), output.len() * self.ranks())?;
        let (input, output) = (Typed(input), Typed(output));
        let from = Side::even(Some(&input), 0, output.bytes());
        self.run::<T>(stream, Collective::ReduceScatter, Some(reduction.into()), 0, from, whole(&output))
    }

    /// As [`DeviceCommunicator::reduce_scatter`]; the result replaces this rank's share of `buffer`. The other shares are
    /// left as they were.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce_scatter_in_place<'a, T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Combine<'a, T>>,
    ) -> Result<()> {
        let (bytes, buffer) = (self.share_bytes::<T>(buffer)?, Typed(buffer));
        let from = Side::even(Some(&buffer), 0, bytes);
        let into = Side::even(Some(&buffer), self.rank() * bytes, bytes);
        self.run::<T>(stream, Collective::ReduceScatter, Some(reduction.into()), 0, from, into)
    }

    /// Gives rank i the i-th share of `input`; `output` gets this rank's share from every rank, in order.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_to_all<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: &mut impl DeviceBufferMut<T>,
    ) -> Result<()> {
        let bytes = self.share_bytes::<T>(input)?;
        self.base().same_length("output", output.len(), input.len())?;
        let (input, output) = (Typed(input), Typed(output));
        let (from, into) = (Side::even(Some(&input), 0, bytes), Side::even(Some(&output), 0, bytes));
        self.run::<T>(stream, Collective::AllToAll, None, 0, from, into)
    }

    /// Nothing that is enqueued on `stream` later begins before every rank has come here.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let nothing = Side::even(None, 0, 0);
        self.run::<u8>(stream, Collective::Barrier, None, 0, nothing, nothing)
    }

    pub(super) fn run<T: Element>(
        &self,
        stream: &Stream,
        collective: Collective,
        reduction: Option<Combine<'_, T>>,
        root: Rank,
        input: Side<'_>,
        output: Side<'_>,
    ) -> Result<()> {
        self.base().in_range("root", root)?;
        self.shared.enqueue(stream, &job::<T>(collective, reduction, root, input, output))
    }

    /// What is asked of it, before it is enqueued.
    pub(super) fn base(&self) -> Asked<'_> {
        self.shared.base.asked_elsewhere()
    }

    /// Bytes of one rank's share of a buffer.
    pub(super) fn share_bytes<T: Element>(&self, buffer: &impl DeviceBuffer<T>) -> Result<usize> {
        Ok(self.base().share_of(buffer.len())? * size_of::<T>())
    }
}

/// All of a buffer as one share.
pub(super) fn whole(buffer: &dyn Region) -> Side<'_> {
    Side::even(Some(buffer), 0, buffer.bytes())
}

pub(super) fn job<'a, T: Element>(
    collective: Collective,
    combine: Option<Combine<'a, T>>,
    root: Rank,
    input: Side<'a>,
    output: Side<'a>,
) -> Job<'a> {
    let (kind, count) = (Kind::Collective(collective), (input.share_bytes / size_of::<T>()) as u64);
    let reduction = combine.as_ref().map(|combine| combine.reduction);
    let own = combine.and_then(|combine| combine.own);
    Job { kind, collective, dtype: T::DTYPE, reduction, own, root, count, input, output }
}
