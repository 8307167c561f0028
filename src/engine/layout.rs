//! Positions of shares, chunks and slices in a buffer.

use std::ops::Range;

/// The division of one buffer into shares, chunks and slices. All numbers are bytes.
#[derive(Clone, Debug)]
pub(crate) struct Layout<'a> {
    shares: Shares<'a>,
    chunks_per_share: usize,
    element: usize,
    /// Distance between the chunks of a share, if shares are even.
    even_stride: usize,
}

/// The shares of a buffer, one for each rank.
#[derive(Clone, Debug)]
pub(crate) enum Shares<'a> {
    /// All shares are equally long and contiguous.
    Even {
        /// Length of a share in bytes.
        bytes: usize,
    },
    /// Each share has its own (offset, length), in bytes.
    Table(&'a [(usize, usize)]),
}

impl<'a> Layout<'a> {
    /// Divides each share into `chunks_per_share` chunks of whole elements of `element` bytes.
    pub(crate) fn new(shares: Shares<'a>, chunks_per_share: usize, element: usize) -> Self {
        let mut layout = Self { shares, chunks_per_share, element, even_stride: 0 };
        if let Shares::Even { bytes } = layout.shares {
            layout.even_stride = layout.stride(bytes);
        }
        layout
    }

    /// Returns the length of the longest chunk among `shares` shares.
    pub(crate) fn longest_chunk(&self, shares: usize) -> usize {
        match self.shares {
            Shares::Even { .. } if shares == 0 => 0,
            Shares::Even { bytes } => self.even_stride.min(bytes),
            Shares::Table(table) => {
                table.iter().map(|&(_, bytes)| self.stride(bytes).min(bytes)).max().unwrap_or(0)
            }
        }
    }

    /// Returns slice `slice_index` of chunk `index`, an empty range past its end.
    pub(crate) fn slice(&self, index: usize, slice_index: usize, slice_bytes: usize) -> Range<usize> {
        let chunk = self.chunk(index);
        let start = (chunk.start + slice_index.saturating_mul(slice_bytes)).min(chunk.end);
        start..(start + slice_bytes).min(chunk.end)
    }

    /// Returns the range of chunk `index`.
    #[inline]
    pub(crate) fn chunk(&self, index: usize) -> Range<usize> {
        // Every step calls this, and a division is slow.
        let share = if self.chunks_per_share == 1 { index } else { index / self.chunks_per_share };
        let chunk = index - share * self.chunks_per_share;
        let (offset, bytes, stride) = match self.shares {
            Shares::Even { bytes } => (share * bytes, bytes, self.even_stride),
            Shares::Table(table) => {
                let (offset, bytes) = table[share];
                (offset, bytes, self.stride(bytes))
            }
        };
        offset + (chunk * stride).min(bytes)..offset + ((chunk + 1) * stride).min(bytes)
    }

    /// Returns the distance between the chunks of a share.
    ///
    /// It is a multiple of the cache line if the share is so long that rounding up leaves no chunk
    /// much shorter than the others.
    pub(crate) fn stride(&self, bytes: usize) -> usize {
        let even = bytes.div_ceil(self.chunks_per_share).next_multiple_of(self.element);
        if even >= ALIGN_MIN_BYTES { even.next_multiple_of(CACHE_LINE_BYTES) } else { even }
    }
}

/// Smallest chunk that is aligned to cache lines of the buffer.
const ALIGN_MIN_BYTES: usize = 1024;
const CACHE_LINE_BYTES: usize = 64;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_tile_every_share(elements in 0usize..10_000, chunks_per_share in 1usize..40, shares in 1usize..5) {
            let bytes = elements * 4;
            let layout = Layout::new(Shares::Even { bytes }, chunks_per_share, 4);
            let mut end = 0;
            for index in 0..shares * chunks_per_share {
                let chunk = layout.chunk(index);
                if index % chunks_per_share == 0 {
                    prop_assert_eq!(chunk.start, index / chunks_per_share * bytes);
                } else {
                    prop_assert_eq!(chunk.start, end);
                }
                prop_assert_eq!(chunk.len() % 4, 0);
                prop_assert!(chunk.len() <= layout.longest_chunk(shares));
                end = chunk.end;
            }
            prop_assert_eq!(end, shares * bytes);
        }

        #[test]
        fn slices_tile_every_chunk(elements in 0usize..10_000, slice in 1usize..50) {
            let layout = Layout::new(Shares::Even { bytes: elements * 4 }, 3, 4);
            let slice = slice * 64;
            for index in 0..3 {
                let chunk = layout.chunk(index);
                let mut end = chunk.start;
                for slice_index in 0..=chunk.len() / slice {
                    let range = layout.slice(index, slice_index, slice);
                    prop_assert_eq!(range.start, end);
                    end = range.end;
                }
                prop_assert_eq!(end, chunk.end);
            }
        }
    }
}
