//! Where an instance stages what it has: each in other memory than those before it, as far as the cache reaches.
//!
//! A line that a peer has just read is in the cache of its core, too, and before it can be written again, that core must
//! give it up: 7 ns a line on a Zen 4, whatever the instruction, where reading one takes 2. Once the line has left the peer's
//! own cache for the common one, writing it takes as long as reading.

/// The places in one half of a channel's part of a window, which instances take in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BounceRing {
    buffers: usize,
    /// Bytes of one.
    buffer_bytes: usize,
    half_bytes: usize,
}

impl BounceRing {
    /// In halves of `half_bytes`, of which so many are in the cache at once; an instance stages `place_bytes` at most.
    pub(super) fn new(half_bytes: usize, cached_bytes: usize, place_bytes: usize) -> Self {
        let places = half_bytes.min(cached_bytes) / place_bytes.max(1);
        Self { buffers: places.max(1), buffer_bytes: place_bytes, half_bytes }
    }

    /// Instances until one is where another was.
    pub(super) fn period(&self) -> u64 {
        2 * self.buffers as u64
    }

    /// Where this instance of a channel begins. The one before it, which peers may still read, is in the other half, even
    /// if its operation had places of another size.
    pub(super) fn offset(&self, channel: usize, instance: u64) -> usize {
        let half = channel * 2 + (instance & 1) as usize;
        half * self.half_bytes + (instance / 2 % self.buffers as u64) as usize * self.buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounce_ring_alternates_halves_and_spares_previous() {
        let one = BounceRing::new(1000, 800, 300);
        let bases: Vec<usize> = (0..6).map(|instance| one.offset(3, instance)).collect();
        assert_eq!(bases, [6000, 7000, 6300, 7300, 6000, 7000]);
        let other = BounceRing::new(1000, 1000, 100);
        for instance in 0..100 {
            let (before, next) = (one.offset(0, instance), other.offset(0, instance + 1));
            assert_ne!(before / 1000, next / 1000, "they are in different halves");
            assert!(next % 1000 + 100 <= 1000 && before % 1000 + 300 <= 1000);
        }
    }

    #[test]
    fn bounce_ring_has_one_buffer_when_full_or_empty() {
        assert_eq!(BounceRing::new(1000, 4000, 600).offset(0, 2), 0);
        assert_eq!(BounceRing::new(1000, 100, 600).offset(0, 2), 0);
        assert_eq!(BounceRing::new(1000, 4000, 0).offset(1, 5), 3000);
    }
}
