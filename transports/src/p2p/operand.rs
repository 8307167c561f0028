//! The memory of one operation, as kernels get it: addresses whose lengths were checked.

use super::lent::Lending;
use crate::{Error, Result};
use std::ptr::null;
use unisono_cuda::device::{Buffer, DeviceBuffer, Extent, Gpu, Plain, Share, Stream};

mod sealed {
    pub trait Sealed {}
}

/// A part of a GPU's memory, whatever it holds: a [`Typed`].
pub trait Region: sealed::Sealed {
    /// Where it begins.
    fn address(&self) -> u64;
    /// Its length.
    fn bytes(&self) -> usize;
    /// Called before work is enqueued in this stream that uses it.
    ///
    /// # Errors
    /// If it cannot be used there.
    fn begin_use(&self, stream: &Stream) -> Result<()>;
    /// Called afterwards: it lasts until that work is done.
    ///
    /// # Errors
    /// If the driver says no.
    fn end_use(&self, stream: &Stream) -> Result<()>;
}

/// Elements of a GPU, by whichever library they were allocated.
#[derive(Clone, Copy)]
pub struct Typed<'a, T: Plain>(pub &'a dyn DeviceBuffer<T>);

impl<T: Plain> sealed::Sealed for Typed<'_, T> {}

impl<T: Plain> Region for Typed<'_, T> {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn bytes(&self) -> usize {
        self.0.len() * size_of::<T>()
    }

    fn begin_use(&self, stream: &Stream) -> Result<()> {
        Ok(self.0.begin_use(stream)?)
    }

    fn end_use(&self, stream: &Stream) -> Result<()> {
        Ok(self.0.end_use(stream)?)
    }
}

/// Uneven shares of a buffer, in memory of the GPU too.
pub struct Shares {
    table: Buffer<Share>,
    /// (start, bytes) of each.
    places: Vec<(u64, u64)>,
}

impl Shares {
    /// Uploads the table.
    ///
    /// # Errors
    /// If there is no room for it, or a share ends beyond all memory.
    pub fn new(gpu: &Gpu, shares: &[Share]) -> Result<Self> {
        if !shares.iter().all(is_sound) {
            return Err(Error::Misuse("shares beyond all memory".to_owned()));
        }
        let places = shares.iter().map(|share| (share.start, share.bytes)).collect();
        Ok(Self { table: gpu.upload(shares)?, places })
    }

    /// Parts of memory anywhere as shares, each cut into blocks of `stride` bytes: see [`Memory::Parts`].
    ///
    /// # Errors
    /// As [`Shares::new`].
    pub fn of_parts(gpu: &Gpu, parts: &[&dyn Region], stride: usize) -> Result<Self> {
        let share = |part: &&dyn Region| Share {
            start: part.address(),
            bytes: part.bytes() as u64,
            stride: stride as u64,
        };
        Self::new(gpu, &parts.iter().map(share).collect::<Vec<_>>())
    }

    /// Where the last of them ends.
    fn end(&self) -> usize {
        self.places.iter().map(|(start, bytes)| start + bytes).max().unwrap_or(0) as usize
    }

    fn are(&self, parts: &[&dyn Region]) -> bool {
        self.places.len() == parts.len()
            && self
                .places
                .iter()
                .zip(parts)
                .all(|(&(start, bytes), part)| (start, bytes) == (part.address(), part.bytes() as u64))
    }
}

fn is_sound(share: &Share) -> bool {
    share.start.checked_add(share.bytes).is_some_and(|end| end < ADDRESSES) && share.stride < ADDRESSES
}

/// More bytes than any memory has; times the blocks of a share, still a number.
const ADDRESSES: u64 = 1 << 48;

/// The memory of an operand, and how it is cut into shares.
#[derive(Clone, Copy)]
pub enum Memory<'a> {
    /// This rank has no such buffer.
    None,
    /// Equal shares, from `offset` of the region on.
    Even {
        /// Where they are.
        region: &'a dyn Region,
        /// Where in it they begin.
        offset: usize,
        /// How many.
        shares: usize,
        /// Bytes of each.
        bytes: usize,
        /// From block to block.
        stride: usize,
    },
    /// Shares with places of their own.
    Uneven {
        /// Where they are.
        region: &'a dyn Region,
        /// Where in it their places count from.
        offset: usize,
        /// Their places.
        shares: &'a Shares,
    },
    /// Every part is a share.
    Parts {
        /// The parts.
        parts: &'a [&'a dyn Region],
        /// Made of the same parts.
        shares: &'a Shares,
    },
}

/// A buffer of an operation.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Its memory.
    pub memory: Memory<'a>,
    /// Blocks of a share.
    pub blocks: usize,
}

impl Operand<'_> {
    /// As the kernel gets it, if `needed` blocks of it are inside of the memory.
    pub(super) fn extent(&self, what: &str, needed: usize) -> Result<Extent> {
        let fits = |region: &dyn Region, offset: usize, length: Option<usize>| {
            length.and_then(|length| length.checked_add(offset)).is_some_and(|end| end <= region.bytes())
        };
        let (inside, shares) = match self.memory {
            Memory::None => (true, 0),
            Memory::Even { region, offset, shares, bytes, stride } => {
                (fits(region, offset, shares.checked_mul(bytes)) && (stride as u64) < ADDRESSES, shares)
            }
            Memory::Uneven { region, offset, shares } => {
                (fits(region, offset, Some(shares.end())), shares.places.len())
            }
            Memory::Parts { parts, shares } => (shares.are(parts), parts.len()),
        };
        let enough = shares.checked_mul(self.blocks) >= Some(needed);
        if !inside || !enough || self.blocks == 0 || self.blocks > u32::MAX as usize {
            return Err(Error::Misuse(format!("an {what} that has not {needed} blocks in {shares} shares")));
        }
        Ok(self.addressed())
    }

    fn addressed(&self) -> Extent {
        let table = |shares: &Shares| shares.table.address() as *const Share;
        let (base, table, share_bytes, stride) = match self.memory {
            Memory::None => (0, null(), 0, 0),
            Memory::Even { region, offset, bytes, stride, .. } => {
                (region.address() as usize + offset, null(), bytes as u64, stride as u64)
            }
            Memory::Uneven { region, offset, shares } => {
                (region.address() as usize + offset, table(shares), 0, 0)
            }
            Memory::Parts { shares, .. } => (0, table(shares), 0, 0),
        };
        Extent { base: base as *mut u8, table, share_bytes, stride, parts: self.blocks as u32, unused: 0 }
    }

    /// Whether all of it is this rank's part of the lending.
    pub(super) fn is_in(&self, lending: &Lending) -> bool {
        match self.memory {
            Memory::Even { region, .. } | Memory::Uneven { region, .. } => {
                lending.offset_of(region).is_some()
            }
            Memory::None | Memory::Parts { .. } => false,
        }
    }

    pub(super) fn begin_use(&self, stream: &Stream) -> Result<()> {
        self.each_region(|region| region.begin_use(stream))
    }

    pub(super) fn end_use(&self, stream: &Stream) -> Result<()> {
        if let Memory::Uneven { shares, .. } | Memory::Parts { shares, .. } = self.memory {
            shares.table.used_by(stream);
        }
        self.each_region(|region| region.end_use(stream))
    }

    /// Visits all regions, also after an error; the first one.
    fn each_region(&self, visit: impl Fn(&dyn Region) -> Result<()>) -> Result<()> {
        match self.memory {
            Memory::None => Ok(()),
            Memory::Even { region, .. } | Memory::Uneven { region, .. } => visit(region),
            Memory::Parts { parts, .. } => {
                let mut outcome = Ok(());
                parts.iter().for_each(|part| {
                    let visited = visit(*part);
                    outcome = std::mem::replace(&mut outcome, Ok(())).and(visited);
                });
                outcome
            }
        }
    }
}
