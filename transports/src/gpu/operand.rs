//! The memory of one operation, as kernels get it: addresses whose lengths were checked.

use crate::gpu::window_set::WindowSet;
use crate::{Error, Result};
use std::ptr::null;
use unisono_cuda::device::{Buffer, BufferLayout, DeviceBuffer, Gpu, Plain, Share, Stream};

mod sealed {
    pub trait Sealed {}
}

/// A part of a GPU's memory, whatever it holds: a [`TypedRegion`].
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
pub struct TypedRegion<'a, T: Plain>(pub &'a dyn DeviceBuffer<T>);

impl<T: Plain> sealed::Sealed for TypedRegion<'_, T> {}

impl<T: Plain> Region for TypedRegion<'_, T> {
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
pub struct ShareTable {
    table: Buffer<Share>,
    /// (start, bytes) of each.
    ranges: Vec<(u64, u64)>,
}

impl ShareTable {
    /// Uploads the table.
    ///
    /// # Errors
    /// If there is no room for it, or a share ends beyond all memory.
    pub fn new(gpu: &Gpu, shares: &[Share]) -> Result<Self> {
        if !shares.iter().all(is_valid) {
            return Err(Error::InvalidUsage("shares beyond all memory".to_owned()));
        }
        let places = shares.iter().map(|share| (share.start, share.bytes)).collect();
        Ok(Self { table: gpu.upload(shares)?, ranges: places })
    }

    /// Parts of memory anywhere as shares, each cut into blocks of `stride` bytes: see [`OperandMemory::Regions`].
    ///
    /// # Errors
    /// As [`ShareTable::new`].
    pub fn from_regions(gpu: &Gpu, parts: &[&dyn Region], stride: usize) -> Result<Self> {
        let share = |part: &&dyn Region| Share {
            start: part.address(),
            bytes: part.bytes() as u64,
            stride: stride as u64,
        };
        Self::new(gpu, &parts.iter().map(share).collect::<Vec<_>>())
    }

    /// Where the last of them ends.
    fn end(&self) -> usize {
        self.ranges.iter().map(|(start, bytes)| start + bytes).max().unwrap_or(0) as usize
    }

    fn matches(&self, parts: &[&dyn Region]) -> bool {
        self.ranges.len() == parts.len()
            && self
                .ranges
                .iter()
                .zip(parts)
                .all(|(&(start, bytes), part)| (start, bytes) == (part.address(), part.bytes() as u64))
    }
}

fn is_valid(share: &Share) -> bool {
    share.start.checked_add(share.bytes).is_some_and(|end| end < ADDRESS_LIMIT)
        && share.stride < ADDRESS_LIMIT
}

/// More bytes than any memory has; times the blocks of a share, still a number.
const ADDRESS_LIMIT: u64 = 1 << 48;

/// The memory of an operand, and how it is cut into shares.
#[derive(Clone, Copy)]
pub enum OperandMemory<'a> {
    /// This rank has no such buffer.
    None,
    /// Equal shares, from `offset` of the region on.
    EvenShares {
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
    UnevenShares {
        /// Where they are.
        region: &'a dyn Region,
        /// Where in it their places count from.
        offset: usize,
        /// Their places.
        shares: &'a ShareTable,
    },
    /// Every part is a share.
    Regions {
        /// The parts.
        parts: &'a [&'a dyn Region],
        /// Made of the same parts.
        shares: &'a ShareTable,
    },
}

/// A buffer of an operation.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Its memory.
    pub memory: OperandMemory<'a>,
    /// Blocks of a share.
    pub chunks_per_share: usize,
}

impl Operand<'_> {
    /// As the kernel gets it, if `needed` blocks of it are inside of the memory.
    pub(crate) fn checked_layout(&self, what: &str, needed: usize) -> Result<BufferLayout> {
        let fits = |region: &dyn Region, offset: usize, length: Option<usize>| {
            length.and_then(|length| length.checked_add(offset)).is_some_and(|end| end <= region.bytes())
        };
        let (inside, shares) = match self.memory {
            OperandMemory::None => (true, 0),
            OperandMemory::EvenShares { region, offset, shares, bytes, stride } => {
                (fits(region, offset, shares.checked_mul(bytes)) && (stride as u64) < ADDRESS_LIMIT, shares)
            }
            OperandMemory::UnevenShares { region, offset, shares } => {
                (fits(region, offset, Some(shares.end())), shares.ranges.len())
            }
            OperandMemory::Regions { parts, shares } => (shares.matches(parts), parts.len()),
        };
        let enough = shares.checked_mul(self.chunks_per_share) >= Some(needed);
        if !inside || !enough || self.chunks_per_share == 0 || self.chunks_per_share > u32::MAX as usize {
            return Err(Error::InvalidUsage(format!(
                "an {what} that has not {needed} blocks in {shares} shares"
            )));
        }
        Ok(self.buffer_layout())
    }

    fn buffer_layout(&self) -> BufferLayout {
        let table = |shares: &ShareTable| shares.table.address() as *const Share;
        let (base, table, share_bytes, stride) = match self.memory {
            OperandMemory::None => (0, null(), 0, 0),
            OperandMemory::EvenShares { region, offset, bytes, stride, .. } => {
                (region.address() as usize + offset, null(), bytes as u64, stride as u64)
            }
            OperandMemory::UnevenShares { region, offset, shares } => {
                (region.address() as usize + offset, table(shares), 0, 0)
            }
            OperandMemory::Regions { shares, .. } => (0, table(shares), 0, 0),
        };
        BufferLayout {
            base: base as *mut u8,
            table,
            share_bytes,
            stride,
            chunks_per_share: self.chunks_per_share as u32,
            unused: 0,
        }
    }

    /// Whether all of it is this rank's part of the lending.
    pub(crate) fn is_in_window(&self, lending: &WindowSet) -> bool {
        match self.memory {
            OperandMemory::EvenShares { region, .. } | OperandMemory::UnevenShares { region, .. } => {
                lending.offset_of(region).is_some()
            }
            OperandMemory::None | OperandMemory::Regions { .. } => false,
        }
    }

    pub(crate) fn begin_use(&self, stream: &Stream) -> Result<()> {
        self.for_each_region(|region| region.begin_use(stream))
    }

    pub(crate) fn end_use(&self, stream: &Stream) -> Result<()> {
        if let OperandMemory::UnevenShares { shares, .. } | OperandMemory::Regions { shares, .. } =
            self.memory
        {
            shares.table.record_stream(stream);
        }
        self.for_each_region(|region| region.end_use(stream))
    }

    /// Visits all regions, also after an error; the first one.
    fn for_each_region(&self, visit: impl Fn(&dyn Region) -> Result<()>) -> Result<()> {
        match self.memory {
            OperandMemory::None => Ok(()),
            OperandMemory::EvenShares { region, .. } | OperandMemory::UnevenShares { region, .. } => {
                visit(region)
            }
            OperandMemory::Regions { parts, .. } => {
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
