//! What a rank has moved, counted where it moves.

use crate::schedule::{ChunkRef, Rank};

/// What one rank has moved through a communicator since it was made.
///
/// Bytes are payload that this rank took from others, out of their messages or memory, or put into their memory; what it
/// adds to a sum there counts once. Heads, flags and tags are not counted, nor what is staged within the rank. With the
/// algorithms that move the fewest bytes that is, for N ranks and D bytes: all_reduce 2 (N−1)/N · D, all_gather and
/// reduce_scatter (N−1)/N · D of the longer buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficStats {
    /// Collectives, sends and receives.
    pub operations: u64,
    /// Bytes.
    pub bytes: u64,
}

impl TrafficStats {
    /// An operation begins.
    #[inline]
    pub(crate) fn begin_op(&mut self) {
        self.operations += 1;
    }

    /// So many bytes were moved.
    #[inline]
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

/// How many of these places are of other ranks than `rank`.
pub(crate) fn count_remote<'p>(rank: Rank, places: impl IntoIterator<Item = &'p ChunkRef>) -> usize {
    places.into_iter().filter(|place| place.rank != rank).count()
}
