//! Rotates the memory that peers read, so that each run writes to memory that the runs before did
//! not use.
//!
//! A cache line that a peer has just read is also in the cache of its core. That core must give the
//! line up before it can be written again, which takes several times as long as reading a line.
//! Once the line has left the peer's own cache for the shared one, writing it takes as long as
//! reading. So both the windows ([`BounceRing`]) and the eager slots ([`PayloadRotation`]) use as
//! much memory in turn as the shared cache holds.

use unisono_transports::SlotClass;

/// The buffers in one half of a channel's part of a window, used in turn by the runs of the
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BounceRing {
    buffers: usize,
    /// Size of one buffer in bytes.
    buffer_bytes: usize,
    half_bytes: usize,
}

impl BounceRing {
    /// Creates a ring in halves of `half_bytes` bytes, of which `cached_bytes` bytes fit into the
    /// cache. A run stages at most `buffer_bytes`.
    pub(super) fn new(half_bytes: usize, cached_bytes: usize, buffer_bytes: usize) -> Self {
        let buffers = half_bytes.min(cached_bytes) / buffer_bytes.max(1);
        Self { buffers: buffers.max(1), buffer_bytes, half_bytes }
    }

    /// Returns the number of runs after which a buffer is used again.
    pub(super) fn period(&self) -> u64 {
        2 * self.buffers as u64
    }

    /// Returns the offset of run `sequence` of a channel in the window.
    ///
    /// Peers may still read the buffer of the run before. That run is always in the other half,
    /// even if its operation had buffers of another size.
    pub(super) fn offset(&self, channel: usize, sequence: u64) -> usize {
        let half = channel * 2 + (sequence & 1) as usize;
        half * self.half_bytes + (sequence / 2 % self.buffers as u64) as usize * self.buffer_bytes
    }
}

/// The offsets, used in turn, of a payload in a 16 KiB slot. The payload fills at most half of the
/// slot.
///
/// The offset changes after each cycle through the slots. Only groups of two ranks rotate. More
/// ranks share a cache, and changing the pages each time would then cost more than it saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PayloadRotation {
    /// Publications in a cycle through the slots, as a power of two.
    period_log2: u32,
    /// Number of offsets minus one. The number is a power of two.
    mask: u64,
    /// Distance between offsets in bytes.
    bytes: usize,
}

impl PayloadRotation {
    /// Creates the rotation for payloads of `bytes` bytes in slots of this class.
    pub(super) fn new(slot: SlotClass, bytes: usize, ranks: usize) -> Self {
        // Slots of larger classes are more than half full, because the smallest class that fits is
        // used.
        let rotates = ranks == 2 && slot == SlotClass::K16;
        let offsets = if rotates { slot.bytes() / bytes.next_power_of_two() } else { 1 };
        Self {
            period_log2: slot.slots(ranks).ilog2(),
            mask: offsets as u64 - 1,
            bytes: slot.bytes() / offsets,
        }
    }

    /// Returns the offset of publication `sequence`.
    #[inline]
    pub(super) fn offset(self, sequence: u64) -> usize {
        ((sequence >> self.period_log2) & self.mask) as usize * self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounce_ring_alternates_halves_and_spares_previous() {
        let ring = BounceRing::new(1000, 800, 300);
        let bases: Vec<usize> = (0..6).map(|sequence| ring.offset(3, sequence)).collect();
        assert_eq!(bases, [6000, 7000, 6300, 7300, 6000, 7000]);
        let other = BounceRing::new(1000, 1000, 100);
        for sequence in 0..100 {
            let (offset, next_offset) = (ring.offset(0, sequence), other.offset(0, sequence + 1));
            assert_ne!(offset / 1000, next_offset / 1000, "they are in different halves");
            assert!(next_offset % 1000 + 100 <= 1000 && offset % 1000 + 300 <= 1000);
        }
    }

    #[test]
    fn bounce_ring_has_one_buffer_when_full_or_empty() {
        assert_eq!(BounceRing::new(1000, 4000, 600).offset(0, 2), 0);
        assert_eq!(BounceRing::new(1000, 100, 600).offset(0, 2), 0);
        assert_eq!(BounceRing::new(1000, 4000, 0).offset(1, 5), 3000);
    }

    #[test]
    fn payload_offset_changes_each_period_then_repeats() {
        let rotation = PayloadRotation::new(SlotClass::K16, 4096, 2);
        let period = SlotClass::K16.slots(2);
        let found =
            [0, period - 1, period, 2 * period, 3 * period, 4 * period].map(|number| rotation.offset(number));
        assert_eq!(found, [0, 0, 4096, 8192, 12288, 0]);
    }

    #[test]
    fn payload_stays_inside_slot_and_full_slot_starts_at_zero() {
        for slot in SlotClass::ALL {
            for ranks in 2..10 {
                for bytes in [1, slot.bytes() / 3, slot.bytes() / 2, slot.bytes() / 2 + 1, slot.bytes()] {
                    let rotation = PayloadRotation::new(slot, bytes, ranks);
                    let most = (0..2000).map(|number| rotation.offset(number)).max();
                    assert!(
                        most.is_some_and(|most| most + bytes <= slot.bytes()),
                        "{slot:?} {ranks} {bytes}"
                    );
                    assert!(most == Some(0) || 2 * bytes <= slot.bytes() && ranks == 2);
                }
            }
        }
    }
}
