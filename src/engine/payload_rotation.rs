//! Where in a slot the data of a post lies.

use unisono_transports::SlotClass;

/// The spots in a slot of four pages that is at most half full: one after the other is used, a lap through the slots each. So two ranks
/// write a line again only when the peer's own cache has lost what it read of it, as in slots that are full; until
/// then that takes several times as long. More ranks share a cache, if not a core, where other pages each time cost more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PayloadRotation {
    /// Posts in a lap, as a power of two.
    period_log2: u32,
    /// One less than there are.
    mask: u64,
    bytes: usize,
}

impl PayloadRotation {
    /// Those for `bytes` bytes in slots of this kind.
    pub(super) fn new(slot: SlotClass, bytes: usize, ranks: usize) -> Self {
        // Of longer slots the smallest that holds something is more than half full.
        let spots =
            if ranks == 2 && slot == SlotClass::K16 { slot.bytes() / bytes.next_power_of_two() } else { 1 };
        Self { period_log2: slot.slots(ranks).ilog2(), mask: spots as u64 - 1, bytes: slot.bytes() / spots }
    }

    /// Where that of post `number` begins.
    #[inline]
    pub(super) fn offset(self, number: u64) -> usize {
        ((number >> self.period_log2) & self.mask) as usize * self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_offset_changes_each_period_then_repeats() {
        let spots = PayloadRotation::new(SlotClass::K16, 4096, 2);
        let lap = SlotClass::K16.slots(2);
        let found = [0, lap - 1, lap, 2 * lap, 3 * lap, 4 * lap].map(|number| spots.offset(number));
        assert_eq!(found, [0, 0, 4096, 8192, 12288, 0]);
    }

    #[test]
    fn payload_stays_inside_slot_and_full_slot_starts_at_zero() {
        for slot in SlotClass::ALL {
            for ranks in 2..10 {
                for bytes in [1, slot.bytes() / 3, slot.bytes() / 2, slot.bytes() / 2 + 1, slot.bytes()] {
                    let spots = PayloadRotation::new(slot, bytes, ranks);
                    let most = (0..2000).map(|number| spots.offset(number)).max();
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
