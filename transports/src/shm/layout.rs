//! Offsets of all regions in a rank's segment.

use crate::shm::eager::{EagerSlots, SlotClass, TAG_WORDS};
use crate::shm::seqlock::{ENTRIES, ENTRY_WORDS};
use crate::shm::signal::{PARITIES, PARITY_WORDS};
use crate::sync::AtomicU64;
use crate::sys::segment::{Extents, HUGE_PAGE_BYTES, PAGE_BYTES, Segment};
use crate::{Error, Geometry, Result};
use std::ops::Range;

/// Offsets of all regions in a rank's segment.
///
/// The head holds the eager slots of less than a page, the control messages and the signal blocks
/// of the lanes. The FIFOs into the segment from every rank follow. The long eager slots, the
/// window and the heap begin on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) geometry: Geometry,
    /// The slots of each class.
    eager_slots: [SlotRow; SlotClass::ALL.len()],
    slot_stride: usize,
    ring_bytes: usize,
    /// Length of the part that every communicator maps: small slots, control messages, signals.
    head_bytes: usize,
    rings: usize,
    window: usize,
    heap: usize,
    bytes: usize,
}

/// The slots of one class, at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotRow {
    /// Offset of the first slot.
    begin: usize,
    stride: usize,
    /// Bytes in front of the data of a slot: its seq, if it has one.
    header_bytes: usize,
    data_bytes: usize,
    /// One less than the number of slots in use, which is a power of two.
    mask: u64,
}

impl Layout {
    /// Computes the layout for `ranks` ranks with these sizes.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] if a FIFO has no slot, or if the layout needs more memory
    /// than there are addresses.
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

    /// Returns the bytes of a rank's segment.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the parts of a rank's segment that are mapped separately.
    pub fn extents(&self) -> Extents {
        Extents { head_bytes: self.head_bytes, bulk: self.rings..self.heap, heap: self.heap..self.bytes }
    }

    /// Returns the offset of the part that large messages use: the FIFOs, the long slots and the
    /// window.
    pub(super) fn bulk(&self) -> usize {
        self.rings
    }

    /// Returns the offset of one parity of a lane's signal block.
    #[inline]
    pub(super) fn signal(&self, lane: usize, parity: usize) -> usize {
        debug_assert!(lane < self.geometry.signal_lanes && parity < PARITIES);
        SIGNAL_BLOCKS + lane * SIGNAL_BLOCK_BYTES + parity * LINE_PAIR_BYTES
    }

    /// Returns the offset of a lane's counter of finished instances.
    #[inline]
    pub(super) fn completions(&self, lane: usize) -> usize {
        debug_assert!(lane < self.geometry.signal_lanes);
        SIGNAL_BLOCKS + lane * SIGNAL_BLOCK_BYTES + PARITIES * LINE_PAIR_BYTES
    }

    /// Returns the offset of the acknowledgement counter of this rank.
    #[inline]
    pub(super) const fn acked() -> usize {
        0
    }

    /// Returns the offset of this rank's hint.
    #[inline]
    pub(super) const fn hint() -> usize {
        Self::acked() + 8
    }

    /// Returns the offset of the word that is one while this rank accesses the heaps of others.
    #[inline]
    pub(super) const fn heap_access() -> usize {
        Self::hint() + 8
    }

    /// Returns the offset of the word in which others ask this rank to wake them. Its line is not
    /// that of the counters, which this rank writes all the time.
    #[inline]
    pub(super) const fn requests() -> usize {
        LINE_BYTES
    }

    /// Returns the offset of the half word on which this rank sleeps.
    #[inline]
    pub(super) const fn asleep() -> usize {
        Self::requests() + 8
    }

    /// Returns the offset of the word that is one once this rank has closed its heap.
    #[inline]
    pub(super) const fn heap_closed() -> usize {
        Self::requests() + 16
    }

    /// Returns the offset of the tag of publication `number`.
    #[inline]
    pub(super) const fn slot_tag(number: u64) -> usize {
        SLOT_TAGS + (number % SlotClass::MAX_SLOTS) as usize * TAG_BYTES
    }

    /// Returns the offset of the slot for publication `number`, with its seq if it has one.
    #[inline]
    pub(super) const fn eager_slot(&self, slot: SlotClass, number: u64) -> usize {
        let row = &self.eager_slots[slot as usize];
        match slot {
            // The smallest class has the shortest path.
            SlotClass::Inline => INLINE_SLOTS + (number % SlotClass::MAX_SLOTS) as usize * LINE_BYTES,
            _ => row.begin + (number & row.mask) as usize * row.stride,
        }
    }

    /// Returns the offset of `bytes` bytes at `offset` of the data of the slot for publication
    /// `number`.
    ///
    /// # Panics
    /// Panics if the bytes are not inside the slot.
    #[inline]
    pub(super) fn eager_slot_data(&self, slot: SlotClass, number: u64, offset: usize, bytes: usize) -> usize {
        let (header_bytes, data_bytes) = match slot {
            SlotClass::Inline => (SEQ_BYTES, SlotClass::Inline.bytes()),
            _ => (self.eager_slots[slot as usize].header_bytes, self.eager_slots[slot as usize].data_bytes),
        };
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= data_bytes);
        assert!(fits, "{bytes} bytes at {offset} of a slot of {data_bytes}");
        self.eager_slot(slot, number) + header_bytes + offset
    }

    /// Returns the huge pages for the used slots of this class.
    ///
    /// The slots fill these pages or share them with other classes, except for a short tail.
    pub(super) fn huge_page_range(&self, slot: SlotClass) -> Range<usize> {
        let SlotRow { begin, mask, .. } = self.eager_slots[slot as usize];
        let end = begin + class_bytes(slot, mask + 1);
        match slot {
            SlotClass::Inline | SlotClass::HalfPage => begin..begin,
            _ => {
                let end = (end - TAIL_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
                begin / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES..end
            }
        }
    }

    /// Returns the offset of the FIFO from rank `sender` on `lane`, with its counter of consumed
    /// messages.
    pub(super) fn ring(&self, sender: usize, lane: usize) -> usize {
        debug_assert!(lane < self.geometry.lanes);
        self.rings + (sender * self.geometry.lanes + lane) * self.ring_bytes
    }

    /// Returns the bytes of a FIFO.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Returns the offset of the slot for message `number`, from the beginning of its FIFO.
    pub(super) fn slot(&self, number: u64) -> usize {
        LINE_PAIR_BYTES + (number % self.geometry.slots as u64) as usize * self.slot_stride
    }

    /// Returns the offset of the entry of control message `number`: its seq, its length, its text.
    pub(super) const fn mailbox_entry(number: u64) -> usize {
        MAILBOX + (number % ENTRIES) as usize * ENTRY_BYTES
    }

    /// Returns the offset of the window.
    #[inline]
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Returns the offset of the heap, on a huge page.
    #[inline]
    pub(super) fn heap(&self) -> usize {
        self.heap
    }
}

/// Eager slots of one rank in its segment.
pub(crate) struct ShmEagerSlots<'w> {
    pub(crate) segment: &'w Segment,
    pub(crate) layout: &'w Layout,
}

impl EagerSlots for ShmEagerSlots<'_> {
    #[inline]
    fn seq(&self, slot: SlotClass, number: u64) -> &AtomicU64 {
        self.segment.word(self.layout.eager_slot(slot, number))
    }

    #[inline]
    fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS] {
        self.segment.words(Layout::slot_tag(number))
    }

    #[inline]
    fn acked(&self) -> &AtomicU64 {
        self.segment.word(Layout::acked())
    }
}

/// Returns the slots of each class and the end of all slots. The long slots lie behind `end`.
fn place_eager_slots(ranks: usize, end: usize) -> Option<([SlotRow; SlotClass::ALL.len()], usize)> {
    let mut next = end.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
    let mut rows = SlotClass::ALL.map(|slot| slot_row(slot, ranks));
    for (row, slot) in rows.iter_mut().zip(SlotClass::ALL) {
        let bytes = class_bytes(slot, row.mask + 1);
        row.begin = match slot {
            SlotClass::Inline => INLINE_SLOTS,
            SlotClass::HalfPage => HALF_PAGE_SLOTS,
            _ => {
                let fills_a_page = bytes >= HUGE_PAGE_BYTES;
                let offset =
                    if fills_a_page { next.checked_next_multiple_of(HUGE_PAGE_BYTES)? } else { next };
                next = offset.checked_add(bytes)?;
                offset
            }
        }
    }
    Some((rows, next))
}

/// Returns the slots of a class, at offset 0.
fn slot_row(slot: SlotClass, ranks: usize) -> SlotRow {
    let header_bytes = match slot {
        SlotClass::Inline | SlotClass::HalfPage => SEQ_BYTES,
        _ => 0,
    };
    let mask = slot.slots(ranks) - 1;
    SlotRow { begin: 0, stride: stride(slot), header_bytes, data_bytes: slot.bytes(), mask }
}

/// Returns the bytes of `count` slots of a class.
const fn class_bytes(slot: SlotClass, count: u64) -> usize {
    count as usize * stride(slot)
}

/// Returns the distance from one slot to the next.
///
/// The distance is not a multiple of the page. Otherwise the first lines of all slots of all ranks
/// would share one set of a cache.
const fn stride(slot: SlotClass) -> usize {
    match slot {
        SlotClass::Inline => LINE_BYTES,
        SlotClass::HalfPage => (SEQ_BYTES + slot.bytes()).next_multiple_of(LINE_PAIR_BYTES),
        _ => slot.bytes() + LINE_PAIR_BYTES,
    }
}

const LINE_BYTES: usize = 64;
/// Distance between regions that different ranks write, because processors fetch lines in pairs.
const LINE_PAIR_BYTES: usize = 2 * LINE_BYTES;
const _: () = assert!(PARITY_WORDS * 8 <= LINE_BYTES, "a parity is one line");
const _: () = assert!(SEQ_BYTES + SlotClass::Inline.bytes() == LINE_BYTES, "a short slot is one line");
const SEQ_BYTES: usize = 8;
/// Longest tail of a huge page that is not worth a huge page.
const TAIL_BYTES: usize = HUGE_PAGE_BYTES / 8;
/// Offset of the short slots. Those of one rank are adjacent lines, so few pages are looked up when
/// many ranks share a core.
const INLINE_SLOTS: usize = LINE_PAIR_BYTES;
const SLOT_TAGS: usize = INLINE_SLOTS + SlotClass::MAX_SLOTS as usize * LINE_BYTES;
const TAG_BYTES: usize = TAG_WORDS * 8;
const HALF_PAGE_SLOTS: usize =
    (SLOT_TAGS + SlotClass::MAX_SLOTS as usize * TAG_BYTES).next_multiple_of(LINE_PAIR_BYTES);
/// Offset of the control messages.
const MAILBOX: usize = HALF_PAGE_SLOTS + class_bytes(SlotClass::HalfPage, SlotClass::MAX_SLOTS);
const ENTRY_BYTES: usize = ((2 + ENTRY_WORDS) * 8).next_multiple_of(LINE_PAIR_BYTES);
/// Offset of the signal blocks.
const SIGNAL_BLOCKS: usize = MAILBOX + ENTRIES as usize * ENTRY_BYTES;
/// Bytes of a signal block: two parities and a counter.
const SIGNAL_BLOCK_BYTES: usize = (PARITIES + 1) * LINE_PAIR_BYTES;
/// Bytes in front of the data of a FIFO slot.
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
            let mut parts = vec![(layout.window(), geometry.window_bytes), (layout.heap(), geometry.heap_bytes), (Layout::acked(), 8), (Layout::hint(), 8), (Layout::heap_access(), 8), (Layout::heap_closed(), 8), (Layout::requests(), 8), (Layout::asleep(), 8)];
            prop_assert_eq!(layout.heap() % HUGE_PAGE_BYTES, 0);
            for slot in SlotClass::ALL {
                let count = slot.slots(ranks);
                prop_assert!(count.is_power_of_two());
                for number in 0..count {
                    let is_long = slot.bytes() > PAGE_BYTES;
                    prop_assert!(!is_long || layout.eager_slot_data(slot, number, 0, 0).is_multiple_of(LINE_BYTES));
                    let head = layout.eager_slot_data(slot, number, 0, 0) - layout.eager_slot(slot, number);
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
            let lanes_of = |sender| (0..geometry.lanes).map(move |lane| (sender, lane));
            for (sender, lane) in (0..ranks).flat_map(lanes_of) {
                let ring = layout.ring(sender, lane);
                parts.push((ring, LINE_BYTES));
                for number in 0..geometry.slots as u64 {
                    parts.push((ring + layout.slot(number), SLOT_HEADER_BYTES + geometry.slot_bytes));
                    prop_assert_eq!(layout.slot(number), layout.slot(number + geometry.slots as u64));
                }
            }
            parts.sort_unstable();
            let starts = parts.iter().map(|part| part.0).skip(1).chain([layout.bytes()]);
            for (&(start, bytes), next) in parts.iter().zip(starts) {
                prop_assert_eq!(start % if [Layout::hint(), Layout::heap_access(), Layout::asleep(), Layout::heap_closed()].contains(&start) { 8 } else { LINE_BYTES }, 0);
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
