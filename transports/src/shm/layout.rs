//! Where everything is in a rank's segment.

use crate::cells::{Cell, TAG_WORDS};
use crate::flags::{BANK_WORDS, BANKS};
use crate::notes::{SHEETS, TEXT_WORDS};
use crate::segment::{HUGE_PAGE_BYTES, PAGE_BYTES};
use crate::{Error, Geometry, Result};
use std::ops::Range;

/// Where everything is in a rank's segment: its cells of less than a page, its notes, the boards of
/// its channels, the FIFOs into it from every rank; and from huge pages on its long cells, its window, its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) geometry: Geometry,
    /// One less than how many cells of each kind are used.
    masks: [u64; Cell::ALL.len()],
    /// Where those of each kind begin.
    cells: [usize; Cell::ALL.len()],
    slot_stride: usize,
    ring_bytes: usize,
    rings: usize,
    window: usize,
    heap: usize,
    bytes: usize,
}

impl Layout {
    /// The layout for `ranks` ranks with these sizes.
    ///
    /// # Errors
    /// [`Error::Misuse`] if a FIFO has no slot, or if that is more memory than there are addresses.
    pub fn new(ranks: usize, geometry: &Geometry) -> Result<Self> {
        if geometry.slots == 0 {
            return Err(Error::Misuse("a FIFO needs at least one slot".to_owned()));
        }
        Self::sum(ranks, geometry)
            .ok_or_else(|| Error::Misuse(format!("{ranks} ranks with {geometry:?} need too much memory")))
    }

    fn sum(ranks: usize, geometry: &Geometry) -> Option<Self> {
        let data = geometry.slot_bytes.checked_next_multiple_of(LINE_BYTES)?;
        let slot_stride = data.checked_add(SLOT_HEAD_BYTES)?.checked_next_multiple_of(PAIR_BYTES)?;
        let ring_bytes = geometry.slots.checked_mul(slot_stride)?.checked_add(PAIR_BYTES)?;
        let rings = geometry.channels.checked_mul(BOARD_BYTES)?.checked_add(BOARDS)?;
        let end = ring_bytes.checked_mul(geometry.lanes)?.checked_mul(ranks)?.checked_add(rings)?;
        let (cells, end) = place_cells(ranks, end)?;
        let window = end.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        let heap = window.checked_add(geometry.window_bytes)?.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        let bytes = heap.checked_add(geometry.heap_bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
        let geometry = *geometry;
        (bytes <= isize::MAX as usize).then_some(Self {
            geometry,
            masks: Cell::ALL.map(|cell| cell.count(ranks) - 1),
            cells,
            slot_stride,
            ring_bytes,
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

    /// Where a bank of a channel's board begins.
    #[inline]
    pub(super) fn bank(&self, channel: usize, bank: usize) -> usize {
        debug_assert!(channel < self.geometry.channels && bank < BANKS);
        BOARDS + channel * BOARD_BYTES + bank * PAIR_BYTES
    }

    /// Where a channel's counter of finished instances is.
    #[inline]
    pub(super) fn finished(&self, channel: usize) -> usize {
        debug_assert!(channel < self.geometry.channels);
        BOARDS + channel * BOARD_BYTES + BANKS * PAIR_BYTES
    }

    /// Where the count of posts that this rank has seen is.
    #[inline]
    pub(super) const fn seen() -> usize {
        0
    }

    /// Where this rank's hint is.
    #[inline]
    pub(super) const fn hint() -> usize {
        Self::seen() + 8
    }

    /// Where the tag of post `number` begins.
    #[inline]
    pub(super) const fn cell_tag(number: u64) -> usize {
        TAGS + (number % Cell::COUNT_MAX) as usize * TAG_BYTES
    }

    /// Where the cell for post `number` begins, with its stamp if it has one.
    #[inline]
    pub(super) const fn cell(&self, cell: Cell, number: u64) -> usize {
        // Of a power of two, by which nothing need be divided.
        let index = (number & self.masks[cell as usize]) as usize;
        match cell {
            // The way of what is smallest is the shortest.
            Cell::Short => SHORT_CELLS + index * LINE_BYTES,
            _ => self.cells[cell as usize] + index * stride(cell),
        }
    }

    /// The huge pages for cells of this kind that are used, which they fill or share with other kinds, but for a short tail.
    pub(super) fn pages_of(&self, cell: Cell) -> Range<usize> {
        let begin = self.cells[cell as usize];
        let end = begin + bytes_of(cell, self.masks[cell as usize] + 1);
        match cell {
            Cell::Short | Cell::Medium => begin..begin,
            _ => {
                let end = (end - TAIL_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
                begin / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES..end
            }
        }
    }

    /// Where the data of the cell for post `number` begins.
    #[inline]
    pub(super) const fn cell_data(&self, cell: Cell, number: u64) -> usize {
        self.cell(cell, number) + head_bytes(cell)
    }

    /// Where the FIFO from rank `from` on `lane` begins, with its counter of consumed messages.
    pub(super) fn ring(&self, from: usize, lane: usize) -> usize {
        debug_assert!(lane < self.geometry.lanes);
        self.rings + (from * self.geometry.lanes + lane) * self.ring_bytes
    }

    /// Where the slot for message `number` begins, from the beginning of its FIFO.
    pub(super) fn slot(&self, number: u64) -> usize {
        PAIR_BYTES + (number % self.geometry.slots as u64) as usize * self.slot_stride
    }

    /// Where the sheet of note `number` begins: its stamp, its length, its text.
    pub(super) const fn note(number: u64) -> usize {
        NOTES + (number % SHEETS) as usize * SHEET_BYTES
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

/// Where the cells of each kind begin, the long ones behind `end`, and where they end.
fn place_cells(ranks: usize, end: usize) -> Option<([usize; Cell::ALL.len()], usize)> {
    let mut next = end.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
    let mut begin = [0; Cell::ALL.len()];
    for cell in Cell::ALL {
        let bytes = bytes_of(cell, cell.count(ranks));
        begin[cell as usize] = match cell {
            Cell::Short => SHORT_CELLS,
            Cell::Medium => MEDIUM_CELLS,
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

/// Bytes of so many cells.
const fn bytes_of(cell: Cell, count: u64) -> usize {
    count as usize * stride(cell)
}

/// What is in front of the data of a cell: its stamp, if it has one.
const fn head_bytes(cell: Cell) -> usize {
    match cell {
        Cell::Short | Cell::Medium => STAMP_BYTES,
        _ => 0,
    }
}

/// From one cell to the next. Not a multiple of the page: else the first lines of all cells of all ranks would share one set
/// of a cache.
const fn stride(cell: Cell) -> usize {
    match cell {
        Cell::Short => LINE_BYTES,
        Cell::Medium => (STAMP_BYTES + cell.bytes()).next_multiple_of(PAIR_BYTES),
        _ => cell.bytes() + PAIR_BYTES,
    }
}

const LINE_BYTES: usize = 64;
/// Processors fetch lines in pairs: what different ranks write is so far apart.
const PAIR_BYTES: usize = 2 * LINE_BYTES;
const _: () = assert!(BANK_WORDS * 8 <= LINE_BYTES, "a bank is one line");
const _: () = assert!(STAMP_BYTES + Cell::Short.bytes() == LINE_BYTES, "a short cell is one line");
const STAMP_BYTES: usize = 8;
/// So little of a huge page is no reason to have one.
const TAIL_BYTES: usize = HUGE_PAGE_BYTES / 8;
/// Short cells of one rank are lines side by side: few pages to find when many ranks share a core.
const SHORT_CELLS: usize = PAIR_BYTES;
const TAGS: usize = SHORT_CELLS + Cell::COUNT_MAX as usize * LINE_BYTES;
const TAG_BYTES: usize = TAG_WORDS * 8;
const MEDIUM_CELLS: usize = (TAGS + Cell::COUNT_MAX as usize * TAG_BYTES).next_multiple_of(PAIR_BYTES);
/// Where the notes begin.
const NOTES: usize = MEDIUM_CELLS + bytes_of(Cell::Medium, Cell::COUNT_MAX);
const SHEET_BYTES: usize = ((2 + TEXT_WORDS) * 8).next_multiple_of(PAIR_BYTES);
/// Where the boards begin.
const BOARDS: usize = NOTES + SHEETS as usize * SHEET_BYTES;
/// Two banks and a counter.
const BOARD_BYTES: usize = (BANKS + 1) * PAIR_BYTES;
/// What is in front of the data of a slot.
pub(super) const SLOT_HEAD_BYTES: usize = LINE_BYTES;

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
                channels,
                window_bytes,
                heap_bytes,
            },
        )
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_all_is_inside(geometry in geometry(), ranks in 1usize..10) {
            let layout = Layout::new(ranks, &geometry).unwrap();
            let mut parts = vec![(layout.window(), geometry.window_bytes), (layout.heap(), geometry.heap_bytes), (Layout::seen(), 8), (Layout::hint(), 8)];
            prop_assert_eq!(layout.heap() % HUGE_PAGE_BYTES, 0);
            for cell in Cell::ALL {
                let count = cell.count(ranks);
                prop_assert!(count.is_power_of_two());
                for number in 0..count {
                    let is_long = cell.bytes() > PAGE_BYTES;
                    prop_assert!(!is_long || layout.cell_data(cell, number).is_multiple_of(LINE_BYTES));
                    let head = layout.cell_data(cell, number) - layout.cell(cell, number);
                    parts.push((layout.cell(cell, number), head + cell.bytes()));
                    prop_assert_eq!(layout.cell(cell, number), layout.cell(cell, number + count));
                }
            }
            parts.push((Layout::cell_tag(0), Layout::cell_tag(Cell::COUNT_MAX - 1) + TAG_BYTES - Layout::cell_tag(0)));
            for number in 0..SHEETS {
                parts.push((Layout::note(number), (2 + TEXT_WORDS) * 8));
                prop_assert_eq!(Layout::note(number), Layout::note(number + SHEETS));
            }
            for channel in 0..geometry.channels {
                parts.extend((0..BANKS).map(|bank| (layout.bank(channel, bank), LINE_BYTES)));
                parts.push((layout.finished(channel), LINE_BYTES));
            }
            for (from, lane) in (0..ranks).flat_map(|from| (0..geometry.lanes).map(move |lane| (from, lane))) {
                let ring = layout.ring(from, lane);
                parts.push((ring, LINE_BYTES));
                for number in 0..geometry.slots as u64 {
                    parts.push((ring + layout.slot(number), SLOT_HEAD_BYTES + geometry.slot_bytes));
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
    fn long_cells_have_the_huge_pages_that_they_fill_or_share_a_few() {
        let geometry = Geometry {
            lanes: 1,
            slots: 1,
            slot_bytes: 64,
            channels: 1,
            window_bytes: HUGE_PAGE_BYTES,
            heap_bytes: 0,
        };
        for ranks in 1..20 {
            let layout = Layout::new(ranks, &geometry).unwrap();
            assert!(layout.pages_of(Cell::Short).is_empty() && layout.pages_of(Cell::Medium).is_empty());
            let mut last = 0;
            for cell in Cell::ALL.into_iter().skip(2) {
                let cells = layout.cell(cell, 0)..layout.cell(cell, cell.count(ranks) - 1) + stride(cell);
                let pages = layout.pages_of(cell);
                assert!(layout.ring(0, 0) < pages.start && pages.end <= layout.window());
                assert_eq!([pages.start % HUGE_PAGE_BYTES, pages.len() % HUGE_PAGE_BYTES], [0, 0]);
                assert!(pages.start <= cells.start && cells.end <= pages.end + TAIL_BYTES);
                if cells.len() < HUGE_PAGE_BYTES {
                    last = pages.end;
                } else {
                    assert_eq!(pages, cells.start..cells.start + HUGE_PAGE_BYTES);
                }
            }
            let most = if ranks > 4 { 1 } else { 2 };
            assert!(ranks < 3 || last - layout.pages_of(Cell::Pages4).start <= most * HUGE_PAGE_BYTES);
            assert_eq!(layout.window() % HUGE_PAGE_BYTES, 0);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let sound = Geometry {
            lanes: 3,
            slots: 4,
            slot_bytes: 128,
            channels: 2,
            window_bytes: 4096,
            heap_bytes: 4096,
        };
        let huge = usize::MAX;
        for geometry in [
            Geometry { lanes: huge, ..sound },
            Geometry { slots: huge / 64, ..sound },
            Geometry { slot_bytes: huge, ..sound },
            Geometry { channels: huge / 8, ..sound },
            Geometry { window_bytes: huge, ..sound },
            Geometry { window_bytes: huge / 2, ..sound },
            Geometry { heap_bytes: huge / 2, ..sound },
            Geometry { slots: 0, ..sound },
        ] {
            assert!(matches!(Layout::new(2, &geometry), Err(Error::Misuse(_))), "{geometry:?}");
        }
        assert!(Layout::new(huge, &sound).is_err());
    }
}
