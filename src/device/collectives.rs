//! The operations, typed: as those of the CPU, but enqueued on a stream.

use super::DeviceCommunicator;
use super::job::{Elements, ElementsMut, Job, Side};
use crate::call::Kind;
use crate::communicator::{digest, places, total};
use crate::error::Result;
use crate::reduction::Reduction;
use crate::schedule::{Collective, Rank};
use unisono_cuda::Element;
use unisono_cuda::device::Stream;
use unisono_transports::p2p::Region;

impl DeviceCommunicator {
    /// Reduces `buffer` over all ranks; every rank gets the result in place.
    ///
    /// # Errors
    /// Misuse leaves the communicator good, as does what is unavailable; all else poisons it. What goes wrong after the
    /// call has returned, [`DeviceCommunicator::check`] says.
    pub fn all_reduce<B: ElementsMut>(
        &self,
        stream: &Stream,
        buffer: &mut B,
        reduction: Reduction,
    ) -> Result<()> {
        let whole = Side::even(Some(buffer), 0, buffer.bytes());
        self.run::<B::Item>(stream, Collective::AllReduce, Some(reduction), 0, whole, whole)
    }

    /// Reduces `input` over all ranks; every rank gets the result in `output`, equally long.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_reduce_into<B: ElementsMut>(
        &self,
        stream: &Stream,
        input: &impl Elements<Item = B::Item>,
        output: &mut B,
        reduction: Reduction,
    ) -> Result<()> {
        self.base().same_length("input", input.count(), output.count())?;
        let (from, into) = (whole(input), whole(output));
        self.run::<B::Item>(stream, Collective::AllReduce, Some(reduction), 0, from, into)
    }

    /// Puts the inputs of all ranks, equally long, one after the other into every rank's `output`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_gather<B: ElementsMut>(
        &self,
        stream: &Stream,
        input: &impl Elements<Item = B::Item>,
        output: &mut B,
    ) -> Result<()> {
        self.base().same_length("output", output.count(), input.count() * self.ranks())?;
        let into = Side::even(Some(output), 0, input.bytes());
        self.run::<B::Item>(stream, Collective::AllGather, None, 0, whole(input), into)
    }

    /// As [`DeviceCommunicator::all_gather`] with this rank's input already in its place in `buffer`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_gather_in_place<B: ElementsMut>(&self, stream: &Stream, buffer: &mut B) -> Result<()> {
        let bytes = self.share_bytes(buffer)?;
        let from = Side::even(Some(buffer), self.rank() * bytes, bytes);
        let into = Side::even(Some(buffer), 0, bytes);
        self.run::<B::Item>(stream, Collective::AllGather, None, 0, from, into)
    }

    /// Puts the inputs of all ranks one after the other into every rank's `output`; rank i gives `counts[i]`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_gather_v<B: ElementsMut>(
        &self,
        stream: &Stream,
        input: &impl Elements<Item = B::Item>,
        output: &mut B,
        counts: &[usize],
    ) -> Result<()> {
        self.base().same_length("counts", counts.len(), self.ranks())?;
        self.base().same_length("input", input.count(), counts[self.rank()])?;
        self.base().same_length("output", output.count(), total(counts)?)?;
        let table = places(counts, size_of::<B::Item>());
        let longest = table.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let output = Side { table: Some(&table), ..Side::even(Some(output), 0, longest) };
        self.enqueue(
            stream,
            Job {
                kind: Kind::AllGatherV,
                count: digest(counts),
                ..job::<B::Item>(Collective::AllGather, None, 0, whole(input), output)
            },
        )
    }

    /// Reduces `input` over all ranks; rank i gets the i-th share of the result in `output`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce_scatter<B: ElementsMut>(
        &self,
        stream: &Stream,
        input: &impl Elements<Item = B::Item>,
        output: &mut B,
        reduction: Reduction,
    ) -> Result<()> {
        self.base().same_length("input", input.count(), output.count() * self.ranks())?;
        let from = Side::even(Some(input), 0, output.bytes());
        self.run::<B::Item>(stream, Collective::ReduceScatter, Some(reduction), 0, from, whole(output))
    }

    /// As [`DeviceCommunicator::reduce_scatter`]; the result replaces this rank's share of `buffer`. The other shares are
    /// left as they were.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce_scatter_in_place<B: ElementsMut>(
        &self,
        stream: &Stream,
        buffer: &mut B,
        reduction: Reduction,
    ) -> Result<()> {
        let bytes = self.share_bytes(buffer)?;
        let from = Side::even(Some(buffer), 0, bytes);
        let into = Side::even(Some(buffer), self.rank() * bytes, bytes);
        self.run::<B::Item>(stream, Collective::ReduceScatter, Some(reduction), 0, from, into)
    }

    /// Gives every rank the contents of `root`'s `buffer`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn broadcast<B: ElementsMut>(&self, stream: &Stream, buffer: &mut B, root: Rank) -> Result<()> {
        let both = whole(buffer);
        self.run::<B::Item>(stream, Collective::Broadcast, None, root, both, both)
    }

    /// As [`DeviceCommunicator::broadcast`] from `input`, which only the root gives, into everybody's `output`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn broadcast_into<A: Elements, B: ElementsMut<Item = A::Item>>(
        &self,
        stream: &Stream,
        input: Option<&A>,
        output: &mut B,
        root: Rank,
    ) -> Result<()> {
        let (at_root, count) = (self.is_root("input", root, input.is_some())?, output.count());
        self.base().same_length_if(at_root, "input", input.map_or(0, A::count), count)?;
        let from = Side::even(input.map(|input| input as &dyn Region), 0, output.bytes());
        self.run::<A::Item>(stream, Collective::Broadcast, None, root, from, whole(output))
    }

    /// Reduces `buffer` over all ranks; the root gets the result in place, the others keep what they have.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce<B: ElementsMut>(
        &self,
        stream: &Stream,
        buffer: &mut B,
        reduction: Reduction,
        root: Rank,
    ) -> Result<()> {
        let both = whole(buffer);
        self.run::<B::Item>(stream, Collective::Reduce, Some(reduction), root, both, both)
    }

    /// Reduces `input` over all ranks into `output`, which only the root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce_into<A: Elements, B: ElementsMut<Item = A::Item>>(
        &self,
        stream: &Stream,
        input: &A,
        output: Option<&mut B>,
        reduction: Reduction,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.is_root("output", root, output.is_some())?;
        let output = output.as_deref();
        self.base().same_length_if(at_root, "output", output.map_or(0, B::count), input.count())?;
        let into = Side::even(output.map(|output| output as &dyn Region), 0, input.bytes());
        self.run::<A::Item>(stream, Collective::Reduce, Some(reduction), root, whole(input), into)
    }

    /// Puts the inputs of all ranks, equally long, one after the other into `output`, which only the root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn gather<A: Elements, B: ElementsMut<Item = A::Item>>(
        &self,
        stream: &Stream,
        input: &A,
        output: Option<&mut B>,
        root: Rank,
    ) -> Result<()> {
        let (at_root, output) = (self.is_root("output", root, output.is_some())?, output.as_deref());
        let needed = input.count() * self.ranks();
        self.base().same_length_if(at_root, "output", output.map_or(0, B::count), needed)?;
        let into = Side::even(output.map(|output| output as &dyn Region), 0, input.bytes());
        self.run::<A::Item>(stream, Collective::Gather, None, root, whole(input), into)
    }

    /// As [`DeviceCommunicator::gather`] with the root's own input already in its place in the output. The root gives the
    /// whole `buffer`, the others their share.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn gather_in_place<B: ElementsMut>(&self, stream: &Stream, buffer: &mut B, root: Rank) -> Result<()> {
        let (bytes, own) = self.share_and_place(buffer, root)?;
        let (from, into) = (Side::even(Some(buffer), own, bytes), Side::even(Some(buffer), 0, bytes));
        self.run::<B::Item>(stream, Collective::Gather, None, root, from, into)
    }

    /// Gives rank i the i-th share of `input`, which only the root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn scatter<A: Elements, B: ElementsMut<Item = A::Item>>(
        &self,
        stream: &Stream,
        input: Option<&A>,
        output: &mut B,
        root: Rank,
    ) -> Result<()> {
        let (at_root, needed) =
            (self.is_root("input", root, input.is_some())?, output.count() * self.ranks());
        self.base().same_length_if(at_root, "input", input.map_or(0, A::count), needed)?;
        let from = Side::even(input.map(|input| input as &dyn Region), 0, output.bytes());
        self.run::<A::Item>(stream, Collective::Scatter, None, root, from, whole(output))
    }

    /// As [`DeviceCommunicator::scatter`]; the root gives the whole `buffer` and keeps its share in place, the others give
    /// room for theirs.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn scatter_in_place<B: ElementsMut>(
        &self,
        stream: &Stream,
        buffer: &mut B,
        root: Rank,
    ) -> Result<()> {
        let (bytes, own) = self.share_and_place(buffer, root)?;
        let (from, into) = (Side::even(Some(buffer), 0, bytes), Side::even(Some(buffer), own, bytes));
        self.run::<B::Item>(stream, Collective::Scatter, None, root, from, into)
    }

    /// Gives rank i the i-th share of `input`; `output` gets this rank's share from every rank, in order.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn all_to_all<B: ElementsMut>(
        &self,
        stream: &Stream,
        input: &impl Elements<Item = B::Item>,
        output: &mut B,
    ) -> Result<()> {
        let bytes = self.share_bytes(input)?;
        self.base().same_length("output", output.count(), input.count())?;
        let (from, into) = (Side::even(Some(input), 0, bytes), Side::even(Some(output), 0, bytes));
        self.run::<B::Item>(stream, Collective::AllToAll, None, 0, from, into)
    }

    /// Nothing that is enqueued on `stream` later begins before every rank has come here.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        let nothing = Side::even(None, 0, 0);
        self.run::<u8>(stream, Collective::Barrier, None, 0, nothing, nothing)
    }

    fn run<T: Element>(
        &self,
        stream: &Stream,
        collective: Collective,
        reduction: Option<Reduction>,
        root: Rank,
        input: Side<'_>,
        output: Side<'_>,
    ) -> Result<()> {
        self.base().in_range("root", root)?;
        self.enqueue(stream, job::<T>(collective, reduction, root, input, output))
    }

    fn enqueue(&self, stream: &Stream, job: Job<'_>) -> Result<()> {
        self.shared.enqueue(stream, &job)
    }

    fn base(&self) -> &crate::Communicator {
        &self.shared.base
    }

    /// Bytes of one rank's share of a buffer.
    fn share_bytes<A: Elements>(&self, buffer: &A) -> Result<usize> {
        Ok(self.base().share_of(buffer.count())? * size_of::<A::Item>())
    }

    /// Bytes of a share of a buffer that only the root gives whole, and where this rank's begins in it.
    fn share_and_place<A: Elements>(&self, buffer: &A, root: Rank) -> Result<(usize, usize)> {
        if self.rank() != root {
            return Ok((buffer.bytes(), 0));
        }
        let bytes = self.share_bytes(buffer)?;
        Ok((bytes, root * bytes))
    }

    /// Whether this rank is the root, which must have given an `what`.
    fn is_root(&self, what: &str, root: Rank, given: bool) -> Result<bool> {
        self.base().in_range("root", root)?;
        self.base().given_at_root(what, root, given)?;
        Ok(self.rank() == root)
    }
}

/// All of a buffer as one share.
fn whole(buffer: &dyn Region) -> Side<'_> {
    Side::even(Some(buffer), 0, buffer.bytes())
}

fn job<'a, T: Element>(
    collective: Collective,
    reduction: Option<Reduction>,
    root: Rank,
    input: Side<'a>,
    output: Side<'a>,
) -> Job<'a> {
    let (kind, count) = (Kind::Collective(collective), (input.share_bytes / size_of::<T>()) as u64);
    Job { kind, collective, dtype: T::DTYPE, reduction, root, count, input, output }
}
