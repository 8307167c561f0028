//! The memory of one operation, as kernels get it: addresses whose lengths were checked.

use crate::{Error, Result};
use std::ptr::null;
use unisono_cuda::device::{Buffer, Extent, Gpu, Plain, Share, Stream, View, ViewMut};

/// A part of a GPU's memory, whatever it holds.
///
/// # Safety
/// The memory is there, `bytes` long, and stays so until the work of every stream that `used_by` was called
/// with is done.
pub unsafe trait Region {
    /// Where it begins.
    fn address(&self) -> u64;
    /// Its length.
    fn bytes(&self) -> usize;
    /// Whose memory it is.
    fn gpu(&self) -> &Gpu;
    /// Says that work in this stream uses it.
    fn used_by(&self, stream: &Stream);
}

macro_rules! region {
    ($($type:ty),*) => {$(
        // SAFETY: such a part knows its length, and its memory lasts until the streams that use it are done.
        unsafe impl<T: Plain> Region for $type {
            fn address(&self) -> u64 {
                <$type>::address(self)
            }

            fn bytes(&self) -> usize {
                self.len() * size_of::<T>()
            }

            fn gpu(&self) -> &Gpu {
                <$type>::gpu(self)
            }

            fn used_by(&self, stream: &Stream) {
                <$type>::used_by(self, stream);
            }
        }
    )*};
}

region!(Buffer<T>, View<'_, T>, ViewMut<'_, T>);

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

    pub(super) fn used_by(&self, stream: &Stream) {
        self.regions(|region| region.used_by(stream));
        if let Memory::Uneven { shares, .. } | Memory::Parts { shares, .. } = self.memory {
            shares.table.used_by(stream);
        }
    }

    pub(super) fn is_on(&self, gpu: &Gpu) -> bool {
        let mut all = true;
        self.regions(|region| all &= region.gpu() == gpu);
        all
    }

    fn regions(&self, mut visit: impl FnMut(&dyn Region)) {
        match self.memory {
            Memory::None => {}
            Memory::Even { region, .. } | Memory::Uneven { region, .. } => visit(region),
            Memory::Parts { parts, .. } => parts.iter().for_each(|part| visit(*part)),
        }
    }
}
