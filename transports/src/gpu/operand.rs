//! The memory of one operation in the form that kernels need, which is addresses with checked
//! lengths.

use crate::gpu::endpoint::Endpoint;
use crate::gpu::table_arena::Table;
use crate::gpu::window_set::WindowSet;
use crate::{Error, Result};
use std::ptr::null;
use unisono_cuda::device::{BufferLayout, CaptureState, DeviceBuffer, DeviceCopy, Share, Stream};
use unisono_reducers::Plain;

mod sealed {
    pub trait Sealed {}
}

/// A part of a GPU's memory with elements of any type. [`TypedRegion`] implements this trait.
pub trait Region: sealed::Sealed {
    /// Returns the address of its first byte.
    fn address(&self) -> u64;
    /// Returns its length.
    fn bytes(&self) -> usize;
    /// Prepares the region for work that is about to be enqueued in this stream.
    ///
    /// # Errors
    /// Returns an error if the region cannot be used in this stream.
    fn begin_use(&self, stream: &Stream) -> Result<()>;
    /// Keeps the region alive until the enqueued work is done. It is called after the work is
    /// enqueued. `capture` is what captures the stream.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    fn end_use(&self, stream: &Stream, capture: CaptureState) -> Result<()>;
}

/// Elements in GPU memory, which any library may have allocated.
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

    fn end_use(&self, stream: &Stream, capture: CaptureState) -> Result<()> {
        Ok(self.0.end_use(stream, capture)?)
    }
}

/// Uneven shares of a buffer, as a table that is in GPU memory too.
pub struct ShareTable {
    table: Table<Share>,
    /// Start and bytes of each share.
    ranges: Vec<(u64, u64)>,
}

impl ShareTable {
    /// Writes the table to memory of `endpoint`.
    ///
    /// # Errors
    /// Returns an error if there is no room for it, or if a share ends beyond any memory.
    pub fn new(endpoint: &Endpoint, shares: &[Share]) -> Result<Self> {
        if !shares.iter().all(is_valid) {
            return Err(Error::InvalidUsage("shares beyond all memory".to_owned()));
        }
        let places = shares.iter().map(|share| (share.start, share.bytes)).collect();
        Ok(Self { table: endpoint.tables.table(shares)?, ranges: places })
    }

    /// Makes shares of regions at any addresses, each divided into chunks of `stride` bytes. See
    /// [`OperandMemory::Regions`].
    ///
    /// # Errors
    /// Fails like [`ShareTable::new`].
    pub fn from_regions(endpoint: &Endpoint, parts: &[&dyn Region], stride: usize) -> Result<Self> {
        let share = |part: &&dyn Region| Share {
            start: part.address(),
            bytes: part.bytes() as u64,
            stride: stride as u64,
        };
        Self::new(endpoint, &parts.iter().map(share).collect::<Vec<_>>())
    }

    /// Returns the end of the last share.
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

/// A limit that is larger than any memory. Multiplied by the chunks of a share, it still fits in a
/// word.
const ADDRESS_LIMIT: u64 = 1 << 48;

/// The memory of an operand, and its division into shares.
#[derive(Clone, Copy)]
pub enum OperandMemory<'a> {
    /// This rank has no such buffer.
    None,
    /// Equal shares, from `offset` of the region on.
    EvenShares {
        /// Memory of the shares.
        region: &'a dyn Region,
        /// Start of the first share in the region.
        offset: usize,
        /// Number of shares.
        shares: usize,
        /// Bytes of each share.
        bytes: usize,
        /// Distance between chunks.
        stride: usize,
    },
    /// Shares at individual positions.
    UnevenShares {
        /// Memory of the shares.
        region: &'a dyn Region,
        /// Position in the region from which the positions of shares count.
        offset: usize,
        /// Positions of the shares.
        shares: &'a ShareTable,
    },
    /// Regions that are one share each.
    Regions {
        /// The regions.
        parts: &'a [&'a dyn Region],
        /// Table made of the same regions.
        shares: &'a ShareTable,
    },
}

/// A buffer of an operation.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Its memory.
    pub memory: OperandMemory<'a>,
    /// Chunks of a share.
    pub chunks_per_share: usize,
    /// Memory that the launch of a program first copies to the beginning of the region. Only an
    /// input with equal shares may have it.
    pub copied_from: Option<&'a dyn Region>,
}

impl Operand<'_> {
    /// Returns the layout for the kernel, if `needed` chunks of it are inside the memory.
    pub(crate) fn checked_layout(&self, what: &str, needed: usize) -> Result<BufferLayout> {
        let fits = |region: &dyn Region, offset: usize, length: Option<usize>| {
            length.and_then(|length| length.checked_add(offset)).is_some_and(|end| end <= region.bytes())
        };
        let (is_inside, shares) = match self.memory {
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
        if !is_inside || !enough || self.chunks_per_share == 0 || self.chunks_per_share > u32::MAX as usize {
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

    /// Returns the copy that precedes the launch, if there is one and the region has room for it.
    pub(crate) fn copy(&self) -> Result<Option<DeviceCopy>> {
        match (self.copied_from, self.memory) {
            (None, _) => Ok(None),
            (Some(source), OperandMemory::EvenShares { region, .. }) if source.bytes() <= region.bytes() => {
                let (target, bytes) = (region.address(), source.bytes());
                Ok(Some(DeviceCopy { target, source: source.address(), bytes }))
            }
            (Some(source), _) => {
                let bytes = source.bytes();
                Err(Error::InvalidUsage(format!("a copy of {bytes} bytes to memory without room for them")))
            }
        }
    }

    /// Returns an error if a copy has to precede the launch.
    pub(crate) fn expect_no_copy(&self) -> Result<()> {
        match self.copied_from {
            None => Ok(()),
            Some(_) => Err(Error::InvalidUsage("only the input of a program is copied first".to_owned())),
        }
    }

    /// Returns true if all of the memory is this rank's part of the window set.
    pub(crate) fn is_in_window(&self, window_set: &WindowSet) -> bool {
        match self.memory {
            OperandMemory::EvenShares { region, .. } | OperandMemory::UnevenShares { region, .. } => {
                window_set.offset_of(region).is_some()
            }
            OperandMemory::None | OperandMemory::Regions { .. } => false,
        }
    }

    pub(crate) fn begin_use(&self, stream: &Stream) -> Result<()> {
        self.for_each_region(|region| region.begin_use(stream))
    }

    pub(crate) fn end_use(&self, stream: &Stream, capture: CaptureState) -> Result<()> {
        // The kernel reads the table of the shares as well, so its memory lives as long as theirs.
        if let OperandMemory::UnevenShares { shares, .. } | OperandMemory::Regions { shares, .. } =
            self.memory
        {
            shares.table.record_use(stream, capture);
        }
        self.for_each_region(|region| region.end_use(stream, capture))
    }

    /// Visits all regions, even after an error. Returns the first error.
    fn for_each_region(&self, visit: impl Fn(&dyn Region) -> Result<()>) -> Result<()> {
        let copied = self.copied_from.map_or(Ok(()), &visit);
        let visited = match self.memory {
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
        };
        copied.and(visited)
    }
}
