//! Where the blocks of a buffer lie.

use std::ops::Range;

/// How one buffer is cut into shares, blocks and slices. All numbers in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Layout<'a> {
    shares: Shares<'a>,
    parts: usize,
    element: usize,
    /// Where shares are even, the distance between the blocks of each.
    even_stride: usize,
}

/// The shares of a buffer, as the caller counts them.
#[derive(Clone, Debug)]
pub(crate) enum Shares<'a> {
    /// All equally long, one after the other.
    Even {
        /// Bytes of each.
        bytes: usize,
    },
    /// Each with its own place: (offset, bytes).
    Table(&'a [(usize, usize)]),
}

impl<'a> Layout<'a> {
    /// Cuts each share into `parts` blocks of whole elements of `element` bytes.
    pub(crate) fn new(shares: Shares<'a>, parts: usize, element: usize) -> Self {
        let mut layout = Self { shares, parts, element, even_stride: 0 };
        if let Shares::Even { bytes } = layout.shares {
            layout.even_stride = layout.stride(bytes);
        }
        layout
    }

    /// Bytes of the longest block among `shares` shares.
    pub(crate) fn longest_block(&self, shares: usize) -> usize {
        match self.shares {
            Shares::Even { .. } if shares == 0 => 0,
            Shares::Even { bytes } => self.even_stride.min(bytes),
            Shares::Table(table) => {
                table.iter().map(|&(_, bytes)| self.stride(bytes).min(bytes)).max().unwrap_or(0)
            }
        }
    }

    /// The `piece`-th slice of block `index`: an empty range past its end.
    pub(crate) fn slice(&self, index: usize, piece: usize, slice_bytes: usize) -> Range<usize> {
        let block = self.block(index);
        let start = (block.start + piece.saturating_mul(slice_bytes)).min(block.end);
        start..(start + slice_bytes).min(block.end)
    }

    /// Where block `index` lies.
    #[inline]
    pub(crate) fn block(&self, index: usize) -> Range<usize> {
        // Every step asks for some, and divisions take their time.
        let share = if self.parts == 1 { index } else { index / self.parts };
        let part = index - share * self.parts;
        let (offset, bytes, stride) = match self.shares {
            Shares::Even { bytes } => (share * bytes, bytes, self.even_stride),
            Shares::Table(table) => {
                let (offset, bytes) = table[share];
                (offset, bytes, self.stride(bytes))
            }
        };
        offset + (part * stride).min(bytes)..offset + ((part + 1) * stride).min(bytes)
    }

    /// Distance between the blocks of a share: whole cache lines where the share is long
    /// enough that rounding up leaves no block much shorter than the others.
    pub(crate) fn stride(&self, bytes: usize) -> usize {
        let even = bytes.div_ceil(self.parts).next_multiple_of(self.element);
        if even >= ROUND_FROM_BYTES { even.next_multiple_of(LINE_BYTES) } else { even }
    }
}

/// Blocks from this size on start on cache lines of the buffer.
const ROUND_FROM_BYTES: usize = 1024;
const LINE_BYTES: usize = 64;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_tile_every_share(elements in 0usize..10_000, parts in 1usize..40, shares in 1usize..5) {
            let bytes = elements * 4;
            let layout = Layout::new(Shares::Even { bytes }, parts, 4);
            let mut end = 0;
            for index in 0..shares * parts {
                let block = layout.block(index);
                if index % parts == 0 {
                    prop_assert_eq!(block.start, index / parts * bytes);
                } else {
                    prop_assert_eq!(block.start, end);
                }
                prop_assert_eq!(block.len() % 4, 0);
                prop_assert!(block.len() <= layout.longest_block(shares));
                end = block.end;
            }
            prop_assert_eq!(end, shares * bytes);
        }

        #[test]
        fn slices_tile_every_block(elements in 0usize..10_000, slice in 1usize..50) {
            let layout = Layout::new(Shares::Even { bytes: elements * 4 }, 3, 4);
            let slice = slice * 64;
            for index in 0..3 {
                let block = layout.block(index);
                let mut end = block.start;
                for piece in 0..=block.len() / slice {
                    let range = layout.slice(index, piece, slice);
                    prop_assert_eq!(range.start, end);
                    end = range.end;
                }
                prop_assert_eq!(end, block.end);
            }
        }
    }
}
