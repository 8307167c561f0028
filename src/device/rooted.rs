//! The operations in which one rank is special.

use super::DeviceCommunicator;
use super::collectives::whole;
use super::combine::Combine;
use super::job::Side;
use crate::error::Result;
use crate::schedule::{Collective, Rank};
use unisono_cuda::Element;
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, Stream};
use unisono_transports::p2p::{Region, Typed};

impl DeviceCommunicator {
    /// Gives every rank the contents of `root`'s `buffer`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn broadcast<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let buffer = Typed(buffer);
        self.run::<T>(stream, Collective::Broadcast, None, root, whole(&buffer), whole(&buffer))
    }

    /// As [`DeviceCommunicator::broadcast`] from `input`, which only the root gives, into everybody's `output`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn broadcast_into<T: Element>(
        &self,
        stream: &Stream,
        input: Option<&impl DeviceBuffer<T>>,
        output: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.is_root("input", root, input.is_some())?;
        let length = input.map_or(0, |input| input.len());
        self.base().same_length_if(at_root, "input", length, output.len())?;
        let (input, output) = (input.map(|input| Typed::<T>(input)), Typed(output));
        let from = Side::even(given(&input), 0, output.bytes());
        self.run::<T>(stream, Collective::Broadcast, None, root, from, whole(&output))
    }

    /// Reduces `buffer` over all ranks; the root gets the result in place, the others keep what they have.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce<'a, T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Combine<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffer = Typed(buffer);
        self.run::<T>(
            stream,
            Collective::Reduce,
            Some(reduction.into()),
            root,
            whole(&buffer),
            whole(&buffer),
        )
    }

    /// Reduces `input` over all ranks into `output`, which only the root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn reduce_into<'a, T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: Option<&mut impl DeviceBufferMut<T>>,
        reduction: impl Into<Combine<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.is_root("output", root, output.is_some())?;
        let length = output.as_ref().map_or(0, |output| output.len());
        self.base().same_length_if(at_root, "output", length, input.len())?;
        let (input, output) = (Typed(input), output.map(|output| Typed::<T>(output)));
        let into = Side::even(given(&output), 0, input.bytes());
        self.run::<T>(stream, Collective::Reduce, Some(reduction.into()), root, whole(&input), into)
    }

    /// Puts the inputs of all ranks, equally long, one after the other into `output`, which only the root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn gather<T: Element>(
        &self,
        stream: &Stream,
        input: &impl DeviceBuffer<T>,
        output: Option<&mut impl DeviceBufferMut<T>>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.is_root("output", root, output.is_some())?;
        let length = output.as_ref().map_or(0, |output| output.len());
        self.base().same_length_if(at_root, "output", length, input.len() * self.ranks())?;
        let (input, output) = (Typed(input), output.map(|output| Typed::<T>(output)));
        let into = Side::even(given(&output), 0, input.bytes());
        self.run::<T>(stream, Collective::Gather, None, root, whole(&input), into)
    }

    /// As [`DeviceCommunicator::gather`] with the root's own input already in its place in the output. The root gives the
    /// whole `buffer`, the others their share.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn gather_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let ((bytes, own), buffer) = (self.share_and_place::<T>(buffer, root)?, Typed(buffer));
        let (from, into) = (Side::even(Some(&buffer), own, bytes), Side::even(Some(&buffer), 0, bytes));
        self.run::<T>(stream, Collective::Gather, None, root, from, into)
    }

    /// Gives rank i the i-th share of `input`, which only the root gives.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn scatter<T: Element>(
        &self,
        stream: &Stream,
        input: Option<&impl DeviceBuffer<T>>,
        output: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let at_root = self.is_root("input", root, input.is_some())?;
        let length = input.map_or(0, |input| input.len());
        self.base().same_length_if(at_root, "input", length, output.len() * self.ranks())?;
        let (input, output) = (input.map(|input| Typed::<T>(input)), Typed(output));
        let from = Side::even(given(&input), 0, output.bytes());
        self.run::<T>(stream, Collective::Scatter, None, root, from, whole(&output))
    }

    /// As [`DeviceCommunicator::scatter`]; the root gives the whole `buffer` and keeps its share in place, the others give
    /// room for theirs.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn scatter_in_place<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        root: Rank,
    ) -> Result<()> {
        let ((bytes, own), buffer) = (self.share_and_place::<T>(buffer, root)?, Typed(buffer));
        let (from, into) = (Side::even(Some(&buffer), 0, bytes), Side::even(Some(&buffer), own, bytes));
        self.run::<T>(stream, Collective::Scatter, None, root, from, into)
    }

    /// Bytes of a share of a buffer that only the root gives whole, and where this rank's begins in it.
    fn share_and_place<T: Element>(
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

    /// Whether this rank is the root, which must have given an `what`.
    fn is_root(&self, what: &str, root: Rank, given: bool) -> Result<bool> {
        self.base().in_range("root", root)?;
        self.base().given_at_root(what, root, given)?;
        Ok(self.rank() == root)
    }
}

fn given<'a, T: Element>(buffer: &'a Option<Typed<'_, T>>) -> Option<&'a dyn Region> {
    buffer.as_ref().map(|buffer| buffer as &dyn Region)
}
