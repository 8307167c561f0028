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
    /// Where the last of them ends.
    end: usize,
}

impl Shares {
    /// Uploads the table.
    ///
    /// # Errors
    /// If there is no room for it, or a share ends beyond all memory.
    pub fn new(gpu: &Gpu, shares: &[Share]) -> Result<Self> {
        let ends = shares.iter().map(|share| share.start.checked_add(share.bytes));
        let end = ends.max().unwrap_or(Some(0)).filter(|_| shares.iter().all(is_sound));
        let end = end.ok_or_else(|| Error::Misuse("shares beyond all memory".to_owned()))? as usize;
        Ok(Self { table: gpu.upload(shares)?, end })
    }
}

fn is_sound(share: &Share) -> bool {
    share.start.checked_add(share.bytes).is_some_and(|end| end < ADDRESSES) && share.stride < ADDRESSES
}

/// More bytes than any memory has; times the blocks of a share, still a number.
const ADDRESSES: u64 = 1 << 48;

/// How a buffer is cut into shares.
#[derive(Clone, Copy)]
pub enum Cut<'a> {
    /// Equal shares.
    Even {
        /// How many.
        shares: usize,
        /// Bytes of each.
        bytes: usize,
        /// From block to block.
        stride: usize,
    },
    /// Shares with places of their own.
    Uneven(&'a Shares),
}

/// A buffer of an operation.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Its memory; none if this rank has no such buffer.
    pub region: Option<&'a dyn Region>,
    /// Where in the memory it begins.
    pub offset: usize,
    /// Its shares.
    pub cut: Cut<'a>,
    /// Blocks of a share.
    pub parts: usize,
}

impl Operand<'_> {
    /// As the kernel gets it, if `blocks` blocks of it are inside of the memory.
    pub(super) fn extent(&self, what: &str, blocks: usize) -> Result<Extent> {
        let (length, shares, share_bytes, stride, table) = match self.cut {
            Cut::Even { shares, bytes, stride } => {
                (shares.checked_mul(bytes), shares, bytes as u64, stride as u64, null())
            }
            Cut::Uneven(shares) => {
                (Some(shares.end), shares.table.len(), 0, 0, shares.table.address() as *const Share)
            }
        };
        let (base, bytes) = self.region.map_or((0, 0), |region| (region.address(), region.bytes()));
        let end = length.and_then(|length| length.checked_add(self.offset));
        let fits = end.is_some_and(|end| end <= bytes) && shares.checked_mul(self.parts) >= Some(blocks);
        if !fits || stride >= ADDRESSES || self.parts == 0 || self.parts > u32::MAX as usize {
            let text =
                format!("an {what} of {bytes} bytes for {blocks} blocks in {shares} shares of {share_bytes}");
            return Err(Error::Misuse(text));
        }
        let base = (base as usize + self.offset) as *mut u8;
        Ok(Extent { base, table, share_bytes, stride, parts: self.parts as u32, unused: 0 })
    }

    pub(super) fn used_by(&self, stream: &Stream) {
        if let Some(region) = self.region {
            region.used_by(stream);
        }
        if let Cut::Uneven(shares) = self.cut {
            shares.table.used_by(stream);
        }
    }

    pub(super) fn is_on(&self, gpu: &Gpu) -> bool {
        self.region.is_none_or(|region| region.gpu() == gpu)
    }
}
