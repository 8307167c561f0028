//! The words of shared memory, for a peer that breaks the protocol: it reaches all of them.

use crate::Header;
use crate::rng::Rng;
use crate::shm::eager::SlotClass;
use crate::shm::layout::Layout;
use crate::shm::seqlock;
use crate::shm::signal::{PARITIES, PARITY_WORDS};
use crate::sync::Ordering;
use crate::sys::segment::Segment;
use std::sync::Arc;

/// The segments of all ranks, as one rank sees them.
#[derive(Clone)]
pub(crate) struct RawMemory {
    pub(crate) rank: usize,
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) layout: Layout,
}

impl RawMemory {
    /// Changes a random word: to `value`, or by a small step, or one bit of it.
    pub(crate) fn write(&self, random: &mut Rng, value: u64) {
        let owner = random.below(self.segments.len());
        let offset = self.offset(random);
        let segment = &self.segments[owner];
        if offset == Layout::asleep() {
            // All ranks reach these bytes as half a word.
            return segment.half_word(offset).store(value as u32, Ordering::Relaxed);
        }
        let word = segment.word(offset);
        let now = word.load(Ordering::Relaxed);
        let value = match random.below(4) {
            0 => now.wrapping_add(1 + random.below(3) as u64),
            1 => now.wrapping_sub(1 + random.below(3) as u64),
            2 => now ^ 1 << random.below(64),
            _ => value,
        };
        word.store(value, Ordering::Release);
    }

    /// Publishes a message with this header, most often as one of this rank.
    pub(crate) fn forge(&self, random: &mut Rng, lane: usize, header: Header) {
        let Self { rank, segments, layout } = self;
        let sender = if random.one_in(4) { random.below(segments.len()) } else { *rank };
        let segment = &segments[random.below(segments.len())];
        let ring = layout.ring(sender, lane);
        let seq = |number: u64| segment.word(ring + layout.slot(number));
        let slots = 0..layout.geometry.slots as u64;
        let number = slots.map(|slot| seq(slot).load(Ordering::Acquire)).max().unwrap_or(0);
        let words = [header.bytes as u64].into_iter().chain(header.tag.0);
        for (index, word) in words.enumerate() {
            segment.word(ring + layout.slot(number) + 8 * (1 + index)).store(word, Ordering::Relaxed);
        }
        seq(number).store(number.wrapping_add(1), Ordering::Release);
    }

    /// Returns the offset of a word that means something to the protocol.
    fn offset(&self, random: &mut Rng) -> usize {
        let Self { layout, segments, .. } = self;
        let geometry = &layout.geometry;
        match random.below(16) {
            0..4 => {
                let ring = layout.ring(random.below(segments.len()), random.below(geometry.lanes));
                // The counter of consumed messages, or seq, length, tag or data of a slot.
                match random.below(4) {
                    0 => ring,
                    _ => ring + layout.slot(random.below(geometry.slots) as u64) + 8 * random.below(8),
                }
            }
            4..8 => {
                // Seq or data of an eager slot, of which the first ones are used first.
                let among = random.choose(&[4, SlotClass::MAX_SLOTS as usize]);
                let number = random.below(among) as u64;
                layout.eager_slot(SlotClass::ALL[random.below(3)], number) + 8 * random.below(8)
            }
            8 => Layout::slot_tag(random.below(8) as u64) + 8 * random.below(4),
            9 => Layout::acked(),
            10 => random.choose(&[Layout::hint(), Layout::requests(), Layout::asleep()]),
            11 => random.choose(&[Layout::heap_access(), Layout::heap_closed()]),
            12 | 13 if geometry.signal_lanes > 0 => {
                let lane = random.below(geometry.signal_lanes);
                match random.below(3) {
                    0 => layout.completions(lane),
                    _ => layout.signal(lane, random.below(PARITIES)) + 8 * random.below(PARITY_WORDS),
                }
            }
            14 => Layout::mailbox_entry(random.below(seqlock::ENTRIES as usize) as u64) + 8 * random.below(8),
            _ => layout.window() + 8 * random.below(geometry.window_bytes.min(4096) / 8),
        }
    }
}
