//! Where everything is in a rank's segment.

use crate::shm::eager::{SlotClass, TAG_WORDS};
use crate::shm::segment::{Extents, HUGE_PAGE_BYTES, PAGE_BYTES};
use crate::shm::seqlock::{ENTRIES, ENTRY_WORDS};
use crate::shm::signal::{PARITIES, PARITY_WORDS};
use crate::{Error, Geometry, Result};
use std::ops::Range;

/// Where everything is in a rank's segment: its slots of less than a page, its notes, the boards of
/// its channels, the FIFOs into it from every rank; and from huge pages on its long slots, its window, its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) geometry: Geometry,
    /// One less than how many slots of each kind are used.
    masks: [u64; SlotClass::ALL.len()],
    /// Where those of each kind begin.
    eager_slots: [usize; SlotClass::ALL.len()],
    slot_stride: usize,
    ring_bytes: usize,
    /// Length of the part that every communicator maps: small slots, control messages, signals.
    head_bytes: usize,
    rings: usize,
    window: usize,
    heap: usize,
    bytes: usize,
}

impl Layout {
    /// The layout for `ranks` ranks with these sizes.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if a FIFO has no slot, or if that is more memory than there are addresses.
    pub fn new(ranks: usize, geometry: &Geometry) -> Result<Self> {
        if geometry.slots == 0 {
            return Err(Error::InvalidUsage("a FIFO needs at least one slot".to_owned()));
        }
        Self::compute(ranks, geometry).ok_or_else(|| {
            Error::InvalidUsage(format!("{ranks} ranks with {geometry:?} need too much memory"))
        })
    }

    fn compute(ranks: usize, geometry: &Geometry) -> Option<Self> {
        let data = geometry.slot_bytes.checked_next_multiple_of(LINE_BYTES)?;
        let slot_stride = data.checked_add(SLOT_HEADER_BYTES)?.checked_next_multiple_of(LINE_PAIR_BYTES)?;
        let ring_bytes = geometry.slots.checked_mul(slot_stride)?.checked_add(LINE_PAIR_BYTES)?;
        let signals_end =
            geometry.signal_lanes.checked_mul(SIGNAL_BLOCK_BYTES)?.checked_add(SIGNAL_BLOCKS)?;
        let head_bytes = signals_end.checked_next_multiple_of(PAGE_BYTES)?;
        let rings = head_bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        let end = ring_bytes.checked_mul(geometry.lanes)?.checked_mul(ranks)?.checked_add(rings)?;
        let (slots, end) = place_eager_slots(ranks, end)?;
        let window = end.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        let heap = window.checked_add(geometry.window_bytes)?.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        let bytes = heap.checked_add(geometry.heap_bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
        let geometry = *geometry;
        (bytes <= isize::MAX as usize).then_some(Self {
            geometry,
            masks: SlotClass::ALL.map(|slot| slot.slots(ranks) - 1),
            eager_slots: slots,
            slot_stride,
            ring_bytes,
            head_bytes,
            rings,
            window,
            heap,
            bytes,
        })
    }

    /// Bytes of a rank's segment.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The parts of a rank's segment that are mapped separately.
    pub fn extents(&self) -> Extents {
        Extents { head_bytes: self.head_bytes, bulk: self.rings..self.heap, heap: self.heap..self.bytes }
    }

    /// Where the FIFOs, the long slots and the window begin: the part that large messages use.
    pub(super) fn bulk(&self) -> usize {
        self.rings
    }

    /// Where a parity of a lane's board begins.
    #[inline]
    pub(super) fn signal(&self, lane: usize, parity: usize) -> usize {
        debug_assert!(lane < self.geometry.signal_lanes && parity < PARITIES);
        SIGNAL_BLOCKS + lane * SIGNAL_BLOCK_BYTES + parity * LINE_PAIR_BYTES
    }

    /// Where a lane's counter of finished instances is.
    #[inline]
    pub(super) fn completions(&self, lane: usize) -> usize {
        debug_assert!(lane < self.geometry.signal_lanes);
        SIGNAL_BLOCKS + lane * SIGNAL_BLOCK_BYTES + PARITIES * LINE_PAIR_BYTES
    }

    /// Where the count of posts that this rank has seen is.
    #[inline]
    pub(super) const fn acked() -> usize {
        0
    }

    /// Where this rank's hint is.
    #[inline]
    pub(super) const fn hint() -> usize {
        Self::acked() + 8
    }

    /// Where the tag of post `number` begins.
    #[inline]
    pub(super) const fn slot_tag(number: u64) -> usize {
        SLOT_TAGS + (number % SlotClass::MAX_SLOTS) as usize * TAG_BYTES
    }

    /// Where the slot for post `number` begins, with its seq if it has one.
    #[inline]
    pub(super) const fn eager_slot(&self, slot: SlotClass, number: u64) -> usize {
        // Of a power of two, by which nothing need be divided.
        let index = (number & self.masks[slot as usize]) as usize;
        match slot {
            // The way of what is smallest is the shortest.
            SlotClass::Inline => INLINE_SLOTS + index * LINE_BYTES,
            _ => self.eager_slots[slot as usize] + index * stride(slot),
        }
    }

    /// The huge pages for slots of this kind that are used, which they fill or share with other kinds, but for a short tail.
    pub(super) fn huge_page_range(&self, slot: SlotClass) -> Range<usize> {
        let begin = self.eager_slots[slot as usize];
        let end = begin + class_bytes(slot, self.masks[slot as usize] + 1);
        match slot {
            SlotClass::Inline | SlotClass::HalfPage => begin..begin,
            _ => {
                let end = (end - TAIL_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
                begin / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES..end
            }
        }
    }

    /// Where the data of the slot for post `number` begins.
    #[inline]
    pub(super) const fn eager_slot_data(&self, slot: SlotClass, number: u64) -> usize {
        self.eager_slot(slot, number) + header_bytes(slot)
    }

    /// Where the FIFO from rank `from` on `lane` begins, with its counter of consumed messages.
    pub(super) fn ring(&self, from: usize, lane: usize) -> usize {
        debug_assert!(lane < self.geometry.lanes);
        self.rings + (from * self.geometry.lanes + lane) * self.ring_bytes
    }

    /// Bytes of a FIFO.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Where the slot for message `number` begins, from the beginning of its FIFO.
    pub(super) fn slot(&self, number: u64) -> usize {
        LINE_PAIR_BYTES + (number % self.geometry.slots as u64) as usize * self.slot_stride
    }

    /// Where the entry of note `number` begins: its seq, its length, its text.
    pub(super) const fn mailbox_entry(number: u64) -> usize {
        MAILBOX + (number % ENTRIES) as usize * ENTRY_BYTES
    }

    /// Where the window begins.
    #[inline]
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Where the heap begins, on a huge page.
    #[inline]
    pub(super) fn heap(&self) -> usize {
        self.heap
    }
}

/// Where the slots of each kind begin, the long ones behind `end`, and where they end.
fn place_eager_slots(ranks: usize, end: usize) -> Option<([usize; SlotClass::ALL.len()], usize)> {
    let mut next = end.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
    let mut begin = [0; SlotClass::ALL.len()];
    for slot in SlotClass::ALL {
        let bytes = class_bytes(slot, slot.slots(ranks));
        begin[slot as usize] = match slot {
            SlotClass::Inline => INLINE_SLOTS,
            SlotClass::HalfPage => HALF_PAGE_SLOTS,
            _ => {
                let fills_a_page = bytes >= HUGE_PAGE_BYTES;
                let at = if fills_a_page { next.checked_next_multiple_of(HUGE_PAGE_BYTES)? } else { next };
                next = at.checked_add(bytes)?;
                at
            }
        }
    }
    Some((begin, next))
}

/// Bytes of so many slots.
const fn class_bytes(slot: SlotClass, count: u64) -> usize {
    count as usize * stride(slot)
}

/// What is in front of the data of a slot: its seq, if it has one.
const fn header_bytes(slot: SlotClass) -> usize {
    match slot {
        SlotClass::Inline | SlotClass::HalfPage => SEQ_BYTES,
        _ => 0,
    }
}

/// From one slot to the next. Not a multiple of the page: else the first lines of all slots of all ranks would share one set
/// of a cache.
const fn stride(slot: SlotClass) -> usize {
    match slot {
        SlotClass::Inline => LINE_BYTES,
        SlotClass::HalfPage => (SEQ_BYTES + slot.bytes()).next_multiple_of(LINE_PAIR_BYTES),
        _ => slot.bytes() + LINE_PAIR_BYTES,
    }
}

const LINE_BYTES: usize = 64;
/// Processors fetch lines in pairs: what different ranks write is so far apart.
const LINE_PAIR_BYTES: usize = 2 * LINE_BYTES;
const _: () = assert!(PARITY_WORDS * 8 <= LINE_BYTES, "a parity is one line");
const _: () = assert!(SEQ_BYTES + SlotClass::Inline.bytes() == LINE_BYTES, "a short slot is one line");
const SEQ_BYTES: usize = 8;
/// So little of a huge page is no reason to have one.
const TAIL_BYTES: usize = HUGE_PAGE_BYTES / 8;
/// Short slots of one rank are lines side by side: few pages to find when many ranks share a core.
const INLINE_SLOTS: usize = LINE_PAIR_BYTES;
const SLOT_TAGS: usize = INLINE_SLOTS + SlotClass::MAX_SLOTS as usize * LINE_BYTES;
const TAG_BYTES: usize = TAG_WORDS * 8;
const HALF_PAGE_SLOTS: usize =
    (SLOT_TAGS + SlotClass::MAX_SLOTS as usize * TAG_BYTES).next_multiple_of(LINE_PAIR_BYTES);
/// Where the notes begin.
const MAILBOX: usize = HALF_PAGE_SLOTS + class_bytes(SlotClass::HalfPage, SlotClass::MAX_SLOTS);
const ENTRY_BYTES: usize = ((2 + ENTRY_WORDS) * 8).next_multiple_of(LINE_PAIR_BYTES);
/// Where the boards begin.
const SIGNAL_BLOCKS: usize = MAILBOX + ENTRIES as usize * ENTRY_BYTES;
/// Two banks and a counter.
const SIGNAL_BLOCK_BYTES: usize = (PARITIES + 1) * LINE_PAIR_BYTES;
/// What is in front of the data of a slot.
pub(super) const SLOT_HEADER_BYTES: usize = LINE_BYTES;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry() -> impl Strategy<Value = Geometry> {
        (1usize..5, 1usize..6, 0usize..300, 0usize..4, 0usize..9000, 0usize..9000).prop_map(
            |(lanes, slots, slot_bytes, channels, window_bytes, heap_bytes)| Geometry {
                lanes,
                slots,
                slot_bytes,
                signal_lanes: channels,
                window_bytes,
                heap_bytes,
            },
        )
    }

    proptest! {
        #[test]
        fn regions_are_disjoint_and_inside(geometry in geometry(), ranks in 1usize..10) {
            let layout = Layout::new(ranks, &geometry).unwrap();
            let mut parts = vec![(layout.window(), geometry.window_bytes), (layout.heap(), geometry.heap_bytes), (Layout::acked(), 8), (Layout::hint(), 8)];
            prop_assert_eq!(layout.heap() % HUGE_PAGE_BYTES, 0);
            for slot in SlotClass::ALL {
                let count = slot.slots(ranks);
                prop_assert!(count.is_power_of_two());
                for number in 0..count {
                    let is_long = slot.bytes() > PAGE_BYTES;
                    prop_assert!(!is_long || layout.eager_slot_data(slot, number).is_multiple_of(LINE_BYTES));
                    let head = layout.eager_slot_data(slot, number) - layout.eager_slot(slot, number);
                    parts.push((layout.eager_slot(slot, number), head + slot.bytes()));
                    prop_assert_eq!(layout.eager_slot(slot, number), layout.eager_slot(slot, number + count));
                }
            }
            parts.push((Layout::slot_tag(0), Layout::slot_tag(SlotClass::MAX_SLOTS - 1) + TAG_BYTES - Layout::slot_tag(0)));
            for number in 0..ENTRIES {
                parts.push((Layout::mailbox_entry(number), (2 + ENTRY_WORDS) * 8));
                prop_assert_eq!(Layout::mailbox_entry(number), Layout::mailbox_entry(number + ENTRIES));
            }
            for lane in 0..geometry.signal_lanes {
                parts.extend((0..PARITIES).map(|parity| (layout.signal(lane, parity), LINE_BYTES)));
                parts.push((layout.completions(lane), LINE_BYTES));
            }
            for (from, lane) in (0..ranks).flat_map(|from| (0..geometry.lanes).map(move |lane| (from, lane))) {
                let ring = layout.ring(from, lane);
                parts.push((ring, LINE_BYTES));
                for number in 0..geometry.slots as u64 {
                    parts.push((ring + layout.slot(number), SLOT_HEADER_BYTES + geometry.slot_bytes));
                    prop_assert_eq!(layout.slot(number), layout.slot(number + geometry.slots as u64));
                }
            }
            parts.sort_unstable();
            let starts = parts.iter().map(|part| part.0).skip(1).chain([layout.bytes()]);
            for (&(start, bytes), next) in parts.iter().zip(starts) {
                prop_assert_eq!(start % if start == Layout::hint() { 8 } else { LINE_BYTES }, 0);
                prop_assert!(start + bytes <= next, "{}+{} reaches into {}", start, bytes, next);
            }
        }
    }

    #[test]
    fn long_slots_fill_or_share_huge_pages() {
        let geometry = Geometry {
            lanes: 1,
            slots: 1,
            slot_bytes: 64,
            signal_lanes: 1,
            window_bytes: HUGE_PAGE_BYTES,
            heap_bytes: 0,
        };
        for ranks in 1..20 {
            let layout = Layout::new(ranks, &geometry).unwrap();
            assert!(
                layout.huge_page_range(SlotClass::Inline).is_empty()
                    && layout.huge_page_range(SlotClass::HalfPage).is_empty()
            );
            let mut last = 0;
            for slot in SlotClass::ALL.into_iter().skip(2) {
                let slots =
                    layout.eager_slot(slot, 0)..layout.eager_slot(slot, slot.slots(ranks) - 1) + stride(slot);
                let pages = layout.huge_page_range(slot);
                assert!(layout.ring(0, 0) < pages.start && pages.end <= layout.window());
                assert_eq!([pages.start % HUGE_PAGE_BYTES, pages.len() % HUGE_PAGE_BYTES], [0, 0]);
                assert!(pages.start <= slots.start && slots.end <= pages.end + TAIL_BYTES);
                if slots.len() < HUGE_PAGE_BYTES {
                    last = pages.end;
                } else {
                    assert_eq!(pages, slots.start..slots.start + HUGE_PAGE_BYTES);
                }
            }
            let most = if ranks > 4 { 1 } else { 2 };
            assert!(
                ranks < 3 || last - layout.huge_page_range(SlotClass::K16).start <= most * HUGE_PAGE_BYTES
            );
            assert_eq!(layout.window() % HUGE_PAGE_BYTES, 0);
        }
    }

    #[test]
    fn overflowing_sizes_are_refused() {
        let sound = Geometry {
            lanes: 3,
            slots: 4,
            slot_bytes: 128,
            signal_lanes: 2,
            window_bytes: 4096,
            heap_bytes: 4096,
        };
        let huge = usize::MAX;
        for geometry in [
            Geometry { lanes: huge, ..sound },
            Geometry { slots: huge / 64, ..sound },
            Geometry { slot_bytes: huge, ..sound },
            Geometry { signal_lanes: huge / 8, ..sound },
            Geometry { window_bytes: huge, ..sound },
            Geometry { window_bytes: huge / 2, ..sound },
            Geometry { heap_bytes: huge / 2, ..sound },
            Geometry { slots: 0, ..sound },
        ] {
            assert!(matches!(Layout::new(2, &geometry), Err(Error::InvalidUsage(_))), "{geometry:?}");
        }
        assert!(Layout::new(huge, &sound).is_err());
    }
}
