//! Everybody's windows and signals in shared memory.

use super::layout::Layout;
use crate::cells::{self, Cell, Cells, TAG_WORDS};
use crate::flags::{self, Announcer, Board};
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use crate::{Heap, Tag, Window};
use std::sync::Arc;
use unisono_cuda::{Source, Target};

/// Everybody's windows, as one rank sees them.
pub(super) struct ShmWindow {
    rank: usize,
    segments: Vec<Arc<Segment>>,
    layout: Layout,
    heap: Arc<Heap>,
    /// This rank's account of its boards, one for each channel.
    announcers: Vec<Announcer>,
}

/// One channel's board in one rank's segment.
struct ShmBoard<'w> {
    segment: &'w Segment,
    layout: &'w Layout,
    channel: usize,
}

impl Board for ShmBoard<'_> {
    fn word(&self, bank: usize, index: usize) -> &AtomicU64 {
        self.segment.word(self.layout.bank(self.channel, bank) + index * 8)
    }

    fn finished(&self) -> &AtomicU64 {
        self.segment.word(self.layout.finished(self.channel))
    }
}

/// One rank's cells in its segment.
struct ShmCells<'w>(&'w Segment, &'w Layout);

impl Cells for ShmCells<'_> {
    fn stamp(&self, cell: Cell, number: u64) -> &AtomicU64 {
        self.0.word(self.1.cell(cell, number))
    }

    fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS] {
        self.0.words(Layout::cell_tag(number))
    }

    fn seen(&self) -> &AtomicU64 {
        self.0.word(Layout::seen())
    }
}

impl ShmWindow {
    pub(super) fn new(rank: usize, layout: Layout, segments: Vec<Arc<Segment>>) -> Self {
        let announcers = vec![Announcer::default(); layout.geometry.channels];
        let own = Arc::clone(&segments[rank]);
        let heap = Arc::new(Heap::new(own, layout.heap(), layout.geometry.heap_bytes));
        Self { rank, segments, layout, heap, announcers }
    }

    fn board(&self, rank: usize, channel: usize) -> ShmBoard<'_> {
        assert!(channel < self.announcers.len(), "channel {channel} of {}", self.announcers.len());
        ShmBoard { segment: &self.segments[rank], layout: &self.layout, channel }
    }

    fn at(&self, rank: usize, offset: usize, bytes: usize) -> *mut u8 {
        let window_bytes = self.layout.geometry.window_bytes;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= window_bytes);
        assert!(fits, "{bytes} bytes at {offset} of a window of {window_bytes}");
        self.segments[rank].at(self.layout.window() + offset, bytes)
    }

    fn in_heap(&self, rank: usize, offset: usize, bytes: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.layout.geometry.heap_bytes);
        inside.then(|| self.segments[rank].at(self.layout.heap() + offset, bytes))
    }

    fn cells(&self, rank: usize) -> ShmCells<'_> {
        ShmCells(&self.segments[rank], &self.layout)
    }

    fn in_cell(&self, rank: usize, cell: Cell, number: u64, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= cell.bytes());
        assert!(fits, "{bytes} bytes at {offset} of a cell of {}", cell.bytes());
        self.segments[rank].at(self.layout.cell_data(cell, number) + offset, bytes)
    }
}

impl Window for ShmWindow {
    fn bytes(&self) -> usize {
        self.layout.geometry.window_bytes
    }

    fn source(&self, rank: usize, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the window by `at`, mapped as long as this lives; only ever reached raw.
        unsafe { Source::from_raw(self.at(rank, offset, bytes), bytes) }
    }

    fn target(&self, rank: usize, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the window by `at`, mapped as long as this lives; only ever reached raw.
        unsafe { Target::from_raw(self.at(rank, offset, bytes), bytes) }
    }

    fn signal(&mut self, channel: usize, value: u64) {
        self.announcers[channel].signal(&self.board(self.rank, channel), value);
    }

    fn signals(&self, rank: usize, channel: usize) -> u64 {
        flags::signals(&self.board(rank, channel))
    }

    fn done(&mut self, channel: usize, value: u64) {
        flags::publish_done(&self.board(self.rank, channel), value);
    }

    fn dones(&self, rank: usize, channel: usize) -> u64 {
        flags::dones(&self.board(rank, channel))
    }

    fn set_tag(&mut self, channel: usize, bank: usize, tag: &Tag) {
        let mut announcer = self.announcers[channel];
        announcer.set_tag(&self.board(self.rank, channel), bank, tag);
        self.announcers[channel] = announcer;
    }

    fn tag(&self, rank: usize, channel: usize, bank: usize) -> Tag {
        flags::tag(&self.board(rank, channel), bank)
    }

    fn cell(&self, rank: usize, cell: Cell, number: u64, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the cell by `in_cell`, mapped as long as this lives; only ever reached raw.
        unsafe { Source::from_raw(self.in_cell(rank, cell, number, offset, bytes), bytes) }
    }

    fn own_cell(&self, cell: Cell, number: u64, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the cell by `in_cell`, mapped as long as this lives; only ever reached raw.
        unsafe { Target::from_raw(self.in_cell(self.rank, cell, number, offset, bytes), bytes) }
    }

    fn post(&mut self, cell: Cell, number: u64, stamp: u64, tag: &Tag) {
        cells::post(&self.cells(self.rank), cell, number, stamp, tag);
    }

    fn posted(&self, rank: usize, cell: Cell, number: u64) -> u64 {
        cells::posted(&self.cells(rank), cell, number)
    }

    fn post_tag(&self, rank: usize, number: u64) -> Tag {
        cells::tag(&self.cells(rank), number)
    }

    fn set_seen(&mut self, count: u64) {
        cells::set_seen(&self.cells(self.rank), count);
    }

    fn seen(&self, rank: usize) -> u64 {
        cells::seen(&self.cells(rank))
    }

    fn hint(&mut self, word: u64) {
        self.segments[self.rank].word(Layout::hint()).store(word, Ordering::Relaxed);
    }

    fn hint_of(&self, rank: usize) -> u64 {
        self.segments[rank].word(Layout::hint()).load(Ordering::Relaxed)
    }

    fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    fn heap_source(&self, rank: usize, offset: usize, bytes: usize) -> Option<Source<'_>> {
        // SAFETY: inside the heap by `in_heap`, mapped as long as this lives; only ever reached raw here.
        self.in_heap(rank, offset, bytes).map(|pointer| unsafe { Source::from_raw(pointer, bytes) })
    }

    fn heap_target(&self, rank: usize, offset: usize, bytes: usize) -> Option<Target<'_>> {
        // SAFETY: inside the heap by `in_heap`, mapped as long as this lives; its owner has called an operation
        // that writes it, and does not touch it before the operation is over.
        self.in_heap(rank, offset, bytes).map(|pointer| unsafe { Target::from_raw(pointer, bytes) })
    }
}
