//! Memory, sockets and descriptors of a fabric.

use std::iter::Sum;
use std::ops::Add;

/// Resources of one part of a fabric, or the sum of several parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of address space for shared memory of this rank and its peers. Address space costs no
    /// memory.
    pub mapped: usize,
    /// Bytes of this rank's own shared memory that are resident, whichever rank touched them.
    ///
    /// Memory of a peer is counted by that peer, so that the sum over ranks counts every page once.
    /// It is zero for ranks that are threads, because it is not known there.
    pub resident: usize,
    /// Bytes of private buffers for messages in flight.
    pub staging: usize,
    /// Number of open sockets. Each costs the kernel a few kilobytes, and buffers while data waits.
    pub sockets: usize,
    /// Number of open descriptors, including those of sockets.
    pub descriptors: usize,
}

impl Add for Footprint {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            mapped: self.mapped + other.mapped,
            resident: self.resident + other.resident,
            staging: self.staging + other.staging,
            sockets: self.sockets + other.sockets,
            descriptors: self.descriptors + other.descriptors,
        }
    }
}

impl Sum for Footprint {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}
