//! Counters of the data that a rank moved.

/// Data that one rank has moved through a communicator since its creation.
///
/// Bytes are payload that this rank read from messages or memory of peers, or wrote into their
/// memory. An addition to a sum there counts once. Headers, flags and tags are left out, and so is
/// staging within the rank.
///
/// For N ranks and D bytes, the algorithms that move the fewest bytes count 2 (N−1)/N · D for
/// `all_reduce`, and (N−1)/N · D of the longer buffer for `all_gather` and `reduce_scatter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficStats {
    /// Number of collectives, sends and receives.
    pub operations: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl TrafficStats {
    /// Counts moved bytes.
    #[inline]
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}
