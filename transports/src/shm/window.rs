//! Everybody's windows and signals in shared memory.

use super::layout::Layout;
use crate::cells::{self, Cell, Cells, TAG_WORDS};
use crate::flags::{self, Announcer, Board};
use crate::segment::{HUGE_PAGE_BYTES, Segment};
use crate::sync::{AtomicU64, Ordering};
use crate::{Heap, Tag};
use std::sync::Arc;
use unisono_cuda::{Source, Target};

/// Memory of every rank that every other rank can reach, and a signal counter
/// per rank and channel.
///
/// Offsets outside a window panic: they are computed locally, never read from
/// a peer. Data written before [`Window::signal`] is visible to a rank that
/// has seen the new value through [`Window::signals`] (release / acquire).
pub struct Window {
    rank: usize,
    segments: Vec<Arc<Segment>>,
    layout: Layout,
    heap: Arc<Heap>,
    /// This rank's account of its boards, one for each channel.
    announcers: Vec<Announcer>,
    /// The kinds of cells that this rank has posted in, a bit each, and how much of its window it has written to.
    prepared_cells: u8,
    prepared_bytes: usize,
}

/// One channel's board in one rank's segment.
struct ShmBoard<'w> {
    segment: &'w Segment,
    layout: &'w Layout,
    channel: usize,
}

impl Board for ShmBoard<'_> {
    #[inline]
    fn word(&self, bank: usize, index: usize) -> &AtomicU64 {
        self.segment.word(self.layout.bank(self.channel, bank) + index * 8)
    }

    #[inline]
    fn finished(&self) -> &AtomicU64 {
        self.segment.word(self.layout.finished(self.channel))
    }
}

/// One rank's cells in its segment.
struct ShmCells<'w>(&'w Segment, &'w Layout);

impl Cells for ShmCells<'_> {
    #[inline]
    fn stamp(&self, cell: Cell, number: u64) -> &AtomicU64 {
        self.0.word(self.1.cell(cell, number))
    }

    #[inline]
    fn tag(&self, number: u64) -> &[AtomicU64; TAG_WORDS] {
        self.0.words(Layout::cell_tag(number))
    }

    #[inline]
    fn seen(&self) -> &AtomicU64 {
        self.0.word(Layout::seen())
    }
}

impl Window {
    pub(super) fn new(rank: usize, layout: Layout, segments: Vec<Arc<Segment>>) -> Self {
        let announcers = vec![Announcer::default(); layout.geometry.channels];
        let own = Arc::clone(&segments[rank]);
        let heap = Arc::new(Heap::new(own, layout.heap(), layout.geometry.heap_bytes));
        Self { rank, segments, layout, heap, announcers, prepared_cells: 0, prepared_bytes: 0 }
    }

    #[inline]
    fn board(&self, rank: usize, channel: usize) -> ShmBoard<'_> {
        assert!(channel < self.announcers.len(), "channel {channel} of {}", self.announcers.len());
        ShmBoard { segment: &self.segments[rank], layout: &self.layout, channel }
    }

    #[inline]
    fn at(&self, rank: usize, offset: usize, bytes: usize) -> *mut u8 {
        let window_bytes = self.layout.geometry.window_bytes;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= window_bytes);
        assert!(fits, "{bytes} bytes at {offset} of a window of {window_bytes}");
        self.segments[rank].at(self.layout.window() + offset, bytes)
    }

    #[inline]
    fn in_heap(&self, rank: usize, offset: usize, bytes: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.layout.geometry.heap_bytes);
        inside.then(|| self.segments[rank].at(self.layout.heap() + offset, bytes))
    }

    #[inline]
    fn cells(&self, rank: usize) -> ShmCells<'_> {
        ShmCells(&self.segments[rank], &self.layout)
    }

    #[inline]
    fn in_cell(&self, rank: usize, cell: Cell, number: u64, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= cell.bytes());
        assert!(fits, "{bytes} bytes at {offset} of a cell of {}", cell.bytes());
        self.segments[rank].at(self.layout.cell_data(cell, number) + offset, bytes)
    }
}

impl Window {
    /// Bytes of each rank's window.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.layout.geometry.window_bytes
    }

    /// This rank is about to write to the first so many bytes of its window. At the first time they get huge pages: these cost a
    /// tenth of the faults of small ones, here and wherever they are read.
    #[inline]
    pub fn prepare(&mut self, bytes: usize) {
        if bytes > self.prepared_bytes {
            self.prepare_more(bytes);
        }
    }

    #[cold]
    fn prepare_more(&mut self, bytes: usize) {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES).min(self.bytes()).max(self.prepared_bytes);
        let begin = self.layout.window() + self.prepared_bytes;
        self.segments[self.rank].fill_with_huge_pages(begin, bytes - self.prepared_bytes);
        self.prepared_bytes = bytes;
    }

    /// The same for this rank's cells of one kind.
    pub fn prepare_cells(&mut self, cell: Cell) {
        let kind = 1 << cell as u8;
        if self.prepared_cells & kind == 0 {
            self.prepared_cells |= kind;
            let pages = self.layout.pages_of(cell);
            self.segments[self.rank].fill_with_huge_pages(pages.start, pages.len());
        }
    }

    /// Memory of `rank`'s window, to read.
    #[inline]
    pub fn source(&self, rank: usize, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the window by `at`, mapped as long as this lives; only ever reached raw.
        unsafe { Source::from_raw(self.at(rank, offset, bytes), bytes) }
    }

    /// Memory of `rank`'s window, to write. By `&self`: a window is only ever reached through raw
    /// pointers, so that this may be held beside [`Window::source`].
    #[inline]
    pub fn target(&self, rank: usize, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the window by `at`, mapped as long as this lives; only ever reached raw.
        unsafe { Target::from_raw(self.at(rank, offset, bytes), bytes) }
    }

    /// Publishes `value` as this rank's signal on `channel`. Values only grow.
    #[inline]
    pub fn signal(&mut self, channel: usize, value: u64) {
        self.announcers[channel].signal(&self.board(self.rank, channel), value);
    }

    /// The last value that `rank` published on `channel`.
    #[inline]
    pub fn signals(&self, rank: usize, channel: usize) -> u64 {
        flags::signals(&self.board(rank, channel))
    }

    /// Publishes that this rank has finished instance `value - 1` on `channel`.
    /// Like [`Window::signal`], on a cache line of its own.
    #[inline]
    pub fn done(&mut self, channel: usize, value: u64) {
        flags::publish_done(&self.board(self.rank, channel), value);
    }

    /// How many instances `rank` has finished on `channel`.
    #[inline]
    pub fn dones(&self, rank: usize, channel: usize) -> u64 {
        flags::dones(&self.board(rank, channel))
    }

    /// Writes this rank's tag for `bank` (0 or 1) of `channel`; visible with the next signal.
    #[inline]
    pub fn set_tag(&mut self, channel: usize, bank: usize, tag: &Tag) {
        let mut announcer = self.announcers[channel];
        announcer.set_tag(&self.board(self.rank, channel), bank, tag);
        self.announcers[channel] = announcer;
    }

    /// The tag that `rank` wrote for `bank` of `channel`.
    #[inline]
    pub fn tag(&self, rank: usize, channel: usize, bank: usize) -> Tag {
        flags::tag(&self.board(rank, channel), bank)
    }

    /// The data of `rank`'s cell for post `number`, to read: see [`Cell`].
    #[inline]
    pub fn cell(&self, rank: usize, cell: Cell, number: u64, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the cell by `in_cell`, mapped as long as this lives; only ever reached raw.
        unsafe { Source::from_raw(self.in_cell(rank, cell, number, offset, bytes), bytes) }
    }

    /// The data of this rank's own cell for post `number`, to write. Raw, as [`Window::target`].
    #[inline]
    pub fn own_cell(&self, cell: Cell, number: u64, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the cell by `in_cell`, mapped as long as this lives; only ever reached raw.
        unsafe { Target::from_raw(self.in_cell(self.rank, cell, number, offset, bytes), bytes) }
    }

    /// Shows this rank's post `number`, whose data is in `cell`, under `stamp`, which no other post has, with a
    /// tag for readers in doubt.
    #[inline]
    pub fn post(&mut self, cell: Cell, number: u64, stamp: u64, tag: &Tag) {
        cells::post(&self.cells(self.rank), cell, number, stamp, tag);
    }

    /// The stamp now in `rank`'s cell for post `number`; in the short one are those of all posts.
    #[inline]
    pub fn posted(&self, rank: usize, cell: Cell, number: u64) -> u64 {
        cells::posted(&self.cells(rank), cell, number)
    }

    /// The tag beside it.
    #[inline]
    pub fn post_tag(&self, rank: usize, number: u64) -> Tag {
        cells::tag(&self.cells(rank), number)
    }

    /// Publishes that this rank is through with all posts before `count`.
    #[inline]
    pub fn set_seen(&mut self, count: u64) {
        cells::set_seen(&self.cells(self.rank), count);
    }

    /// How many posts `rank` is through with.
    #[inline]
    pub fn seen(&self, rank: usize) -> u64 {
        cells::seen(&self.cells(rank))
    }

    /// Shows a word to everybody, some time: a hint, on which nothing depends that must be right.
    #[inline]
    pub fn hint(&mut self, word: u64) {
        self.segments[self.rank].word(Layout::hint()).store(word, Ordering::Relaxed);
    }

    /// The last such word of `rank`; zero before.
    #[inline]
    pub fn hint_of(&self, rank: usize) -> u64 {
        self.segments[rank].word(Layout::hint()).load(Ordering::Relaxed)
    }

    /// This rank's heap.
    #[inline]
    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// Memory of `rank`'s heap, to read; `None` if it is not inside: such an offset may come from a peer.
    #[inline]
    pub fn heap_source(&self, rank: usize, offset: usize, bytes: usize) -> Option<Source<'_>> {
        // SAFETY: inside the heap by `in_heap`, mapped as long as this lives; only ever reached raw here.
        self.in_heap(rank, offset, bytes).map(|pointer| unsafe { Source::from_raw(pointer, bytes) })
    }

    /// Memory of `rank`'s heap, to write. Raw, as [`Window::target`].
    #[inline]
    pub fn heap_target(&self, rank: usize, offset: usize, bytes: usize) -> Option<Target<'_>> {
        // SAFETY: inside the heap by `in_heap`, mapped as long as this lives; its owner has called an operation
        // that writes it, and does not touch it before the operation is over.
        self.in_heap(rank, offset, bytes).map(|pointer| unsafe { Target::from_raw(pointer, bytes) })
    }
}
