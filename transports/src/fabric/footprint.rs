//! What the parts of a fabric keep in memory.

use std::iter::Sum;
use std::ops::Add;

/// What one part keeps, or several together. Bytes, but for the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Address space of shared memory, this rank's own and its peers'. Costs nothing by itself.
    pub mapped: usize,
    /// Pages of this rank's own shared memory that exist, whichever rank touched them. What peers own is
    /// their count, so that the sum over ranks counts every page once. Not known, and zero, for threads.
    pub resident: usize,
    /// Buffers in the memory of this process alone: room for messages that are on their way.
    pub staging: usize,
    /// Connections that are open. Each costs the kernel a few kilobytes, and its buffers while data waits.
    pub sockets: usize,
    /// Descriptors that are open, sockets included.
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
