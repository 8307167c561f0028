//! Windows and signals of all ranks in shared memory.

use super::layout::{Layout, ShmEagerSlots};
use crate::shm::eager;
use crate::shm::eager::SlotClass;
use crate::shm::exposure::{HeapAccess, HeapExposure, HeapGroup};
use crate::shm::signal;
use crate::shm::signal::{SignalBlock, SignalWriter};
use crate::shm::sleep::Sleepers;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::segment::{HUGE_PAGE_BYTES, Segment};
use crate::{HeapAllocation, Result, SymmetricHeap, Tag};
use std::ops::Range;
use std::sync::Arc;
use unisono_reducers::{Source, Target};

/// Memory of every rank that every other rank can access, and a signal counter for each rank and
/// lane.
///
/// Offsets outside a window panic, because they are computed locally and never read from a peer.
/// Data written before [`Window::signal`] is visible to a rank that has seen the new value through
/// [`Window::last_signal`] (release / acquire).
pub struct Window {
    rank: usize,
    segments: Vec<Arc<Segment>>,
    layout: Layout,
    heaps: Arc<HeapGroup>,
    /// The ranks that sleep until this one publishes something.
    sleepers: Arc<Sleepers>,
    /// State of this rank's signal blocks, one for each lane.
    signal_writers: Vec<SignalWriter>,
    /// The slot classes that this rank has prepared for writing, with one bit for each. The next
    /// field is the number of bytes of its window that it has prepared.
    prepared_classes: u8,
    prepared_bytes: usize,
    /// True if the long slots and windows of all ranks are mapped.
    is_mapped: bool,
}

/// Signal block of one lane in one rank's segment.
struct ShmSignalBlock<'w> {
    segment: &'w Segment,
    layout: &'w Layout,
    lane: usize,
}

impl SignalBlock for ShmSignalBlock<'_> {
    #[inline]
    fn word(&self, parity: usize, index: usize) -> &AtomicU64 {
        self.segment.word(self.layout.signal(self.lane, parity) + index * 8)
    }

    #[inline]
    fn completions(&self) -> &AtomicU64 {
        self.segment.word(self.layout.completions(self.lane))
    }
}

impl Window {
    pub(super) fn new(
        rank: usize,
        layout: Layout,
        segments: Vec<Arc<Segment>>,
        sleepers: &Arc<Sleepers>,
    ) -> Self {
        let announcers = vec![SignalWriter::default(); layout.geometry.signal_lanes];
        let segment = Arc::clone(&segments[rank]);
        let heap = Arc::new(SymmetricHeap::new(segment, layout.heap(), layout.geometry.heap_bytes));
        let heaps = Arc::new(HeapGroup { rank, segments: segments.clone(), layout, heap });
        Self {
            rank,
            segments,
            layout,
            heaps,
            sleepers: Arc::clone(sleepers),
            signal_writers: announcers,
            prepared_classes: 0,
            prepared_bytes: 0,
            is_mapped: false,
        }
    }

    /// Returns the shared memory of all ranks and its layout, for a peer that breaks the protocol.
    pub(crate) fn memory(&self) -> (Vec<Arc<Segment>>, Layout) {
        (self.segments.clone(), self.layout)
    }

    #[inline]
    fn signal_block(&self, rank: usize, lane: usize) -> ShmSignalBlock<'_> {
        assert!(lane < self.signal_writers.len(), "lane {lane} of {}", self.signal_writers.len());
        ShmSignalBlock { segment: &self.segments[rank], layout: &self.layout, lane }
    }

    #[inline]
    fn window_ptr(&self, rank: usize, offset: usize, bytes: usize) -> *mut u8 {
        let window_bytes = self.layout.geometry.window_bytes;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= window_bytes);
        assert!(fits, "{bytes} bytes at {offset} of a window of {window_bytes}");
        self.segments[rank].at(self.layout.window() + offset, bytes)
    }

    #[inline]
    fn eager_slots(&self, rank: usize) -> ShmEagerSlots<'_> {
        ShmEagerSlots { segment: &self.segments[rank], layout: &self.layout }
    }

    #[inline]
    fn slot_ptr(&self, rank: usize, slot: SlotClass, number: u64, offset: usize, bytes: usize) -> *mut u8 {
        self.segments[rank].at(self.layout.eager_slot_data(slot, number, offset, bytes), bytes)
    }
}

impl Window {
    /// Returns the bytes of each rank's window.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.layout.geometry.window_bytes
    }

    /// Prepares the first `bytes` bytes of this rank's window for writing, and maps the windows of
    /// all ranks.
    ///
    /// Bytes prepared for the first time get huge pages. They cause fewer page faults than small
    /// pages, for this rank and for its readers.
    ///
    /// # Errors
    /// Returns the system's error, if there is no address space.
    #[inline]
    pub fn prepare(&mut self, bytes: usize) -> Result<()> {
        match bytes > self.prepared_bytes || !self.is_mapped {
            true => self.prepare_more(bytes),
            false => Ok(()),
        }
    }

    #[cold]
    fn prepare_more(&mut self, bytes: usize) -> Result<()> {
        self.map_windows()?;
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES).min(self.bytes()).max(self.prepared_bytes);
        let begin = self.layout.window() + self.prepared_bytes;
        self.segments[self.rank].collapse_huge_pages(begin, bytes - self.prepared_bytes);
        self.prepared_bytes = bytes;
        Ok(())
    }

    /// Prepares this rank's slots of one class for writing, and maps those of all ranks.
    ///
    /// # Errors
    /// As [`Window::prepare`].
    pub fn prepare_slots(&mut self, slot: SlotClass) -> Result<()> {
        self.map_slots(slot)?;
        let kind = 1 << slot as u8;
        if self.prepared_classes & kind == 0 {
            self.prepared_classes |= kind;
            let pages = self.layout.huge_page_range(slot);
            self.segments[self.rank].collapse_huge_pages(pages.start, pages.len());
        }
        Ok(())
    }

    /// Maps the slots of one class of all ranks, for reading.
    ///
    /// # Errors
    /// As [`Window::prepare`].
    pub fn map_slots(&mut self, slot: SlotClass) -> Result<()> {
        match slot {
            SlotClass::Inline | SlotClass::HalfPage => Ok(()),
            _ => self.map_windows(),
        }
    }

    fn map_windows(&mut self) -> Result<()> {
        if !self.is_mapped {
            let bulk = self.layout.bulk();
            self.segments.iter().try_for_each(|segment| segment.map_part(bulk))?;
            let (window, bytes) = (self.layout.window(), self.layout.geometry.window_bytes);
            self.segments[self.rank].prefer_huge_pages(window, bytes);
            self.is_mapped = true;
        }
        Ok(())
    }

    /// Allocates `bytes` bytes of this rank's heap, and maps the heaps of all ranks.
    ///
    /// # Errors
    /// As [`SymmetricHeap::alloc`].
    pub fn alloc_symmetric(&self, bytes: usize) -> Result<HeapAllocation> {
        let heap = self.layout.heap();
        // Operations on the heaps of peers cannot report that there is no address space, so all
        // heaps are mapped here, where the call can still fail.
        self.segments.iter().try_for_each(|segment| segment.map_part(heap))?;
        self.heaps.heap.alloc(bytes)
    }

    /// Returns memory of `rank`'s window for reading.
    #[inline]
    pub fn source(&self, rank: usize, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the window by `window_ptr`, mapped as long as this lives; only ever
        // reached raw.
        unsafe { Source::from_raw(self.window_ptr(rank, offset, bytes), bytes) }
    }

    /// Returns memory of `rank`'s window for writing.
    ///
    /// `&self` is enough, because a window is only accessed through raw pointers. So the result may
    /// be held at the same time as that of [`Window::source`].
    #[inline]
    pub fn target(&self, rank: usize, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the window by `window_ptr`, mapped as long as this lives; only ever
        // reached raw.
        unsafe { Target::from_raw(self.window_ptr(rank, offset, bytes), bytes) }
    }

    /// Publishes `value` as this rank's signal on `lane`. Values only grow.
    #[inline]
    pub fn signal(&mut self, lane: usize, value: u64) {
        // The value comes before the wake-up. A rank that goes to sleep after this look at the
        // sleepers checks the value once more, and finds it
        // (docs/decisions/0022-sleepers-are-woken.md).
        self.signal_writers[lane].signal(&self.signal_block(self.rank, lane), value);
        self.sleepers.notify();
    }

    /// Returns the last value that `rank` published on `lane`.
    #[inline]
    pub fn last_signal(&self, rank: usize, lane: usize) -> u64 {
        signal::last_signal(&self.signal_block(rank, lane))
    }

    /// Publishes that this rank has finished instance `value - 1` on `lane`. The counter works like
    /// [`Window::signal`], on a cache line of its own.
    #[inline]
    pub fn complete(&mut self, lane: usize, value: u64) {
        signal::publish_completion(&self.signal_block(self.rank, lane), value);
        self.sleepers.notify();
    }

    /// Returns the number of instances that `rank` has finished on `lane`.
    #[inline]
    pub fn completions(&self, rank: usize, lane: usize) -> u64 {
        signal::completions(&self.signal_block(rank, lane))
    }

    /// Writes this rank's tag for `parity` (0 or 1) of `lane`. The tag is visible with the next
    /// signal.
    #[inline]
    pub fn set_tag(&mut self, lane: usize, parity: usize, tag: &Tag) {
        // The writer is copied and put back, because the signal block borrows the whole window.
        let mut writer = self.signal_writers[lane];
        writer.set_tag(&self.signal_block(self.rank, lane), parity, tag);
        self.signal_writers[lane] = writer;
    }

    /// Returns the tag that `rank` wrote for `parity` of `lane`.
    #[inline]
    pub fn tag(&self, rank: usize, lane: usize, parity: usize) -> Tag {
        signal::tag(&self.signal_block(rank, lane), parity)
    }

    /// Returns the data of `rank`'s slot for publication `number`, for reading. See [`SlotClass`].
    #[inline]
    pub fn slot(&self, rank: usize, slot: SlotClass, number: u64, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the slot by `slot_ptr`, mapped as long as this lives; only ever reached
        // raw.
        unsafe { Source::from_raw(self.slot_ptr(rank, slot, number, offset, bytes), bytes) }
    }

    /// Returns the data of this rank's own slot for publication `number`, for writing. The memory
    /// is raw, as in [`Window::target`].
    #[inline]
    pub fn own_slot(&self, slot: SlotClass, number: u64, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the slot by `slot_ptr`, mapped as long as this lives; only ever reached
        // raw.
        unsafe { Target::from_raw(self.slot_ptr(self.rank, slot, number, offset, bytes), bytes) }
    }

    /// Shows this rank's publication `number` to readers under `seq`. Its data is in `slot`.
    ///
    /// No other publication has the same `seq`. Readers in doubt compare the tag.
    #[inline]
    pub fn publish(&mut self, slot: SlotClass, number: u64, seq: u64, tag: &Tag) {
        eager::publish(&self.eager_slots(self.rank), slot, number, seq, tag);
        self.sleepers.notify();
    }

    /// Returns the current seq of `rank`'s slot for publication `number`. The short slot holds the
    /// seqs of all classes.
    #[inline]
    pub fn published(&self, rank: usize, slot: SlotClass, number: u64) -> u64 {
        eager::published(&self.eager_slots(rank), slot, number)
    }

    /// Returns the tag of `rank`'s publication `number`.
    #[inline]
    pub fn published_tag(&self, rank: usize, number: u64) -> Tag {
        eager::tag(&self.eager_slots(rank), number)
    }

    /// Publishes that this rank has consumed all publications before `count`.
    #[inline]
    pub fn set_acked(&mut self, count: u64) {
        eager::set_acked(&self.eager_slots(self.rank), count);
        self.sleepers.notify();
    }

    /// Returns the number of publications that `rank` has consumed.
    #[inline]
    pub fn acked(&self, rank: usize) -> u64 {
        eager::acked(&self.eager_slots(rank))
    }

    /// Shows a word to all ranks at some later time. The word is only a hint, and correctness does
    /// not depend on it.
    #[inline]
    pub fn set_hint(&mut self, word: u64) {
        self.segments[self.rank].word(Layout::hint()).store(word, Ordering::Relaxed);
    }

    /// Returns the last hint of `rank`, or zero before the first.
    #[inline]
    pub fn hint(&self, rank: usize) -> u64 {
        self.segments[rank].word(Layout::hint()).load(Ordering::Relaxed)
    }

    /// Returns this rank's heap.
    #[inline]
    pub fn heap(&self) -> &Arc<SymmetricHeap> {
        &self.heaps.heap
    }

    /// Exposes parts of this rank's heap, by offset, to the peers that run the same operation.
    #[inline]
    pub fn expose_heap(&self, parts: [Range<usize>; 2]) -> HeapExposure {
        HeapExposure::new(&self.heaps, parts)
    }

    /// Begins an access to the heaps of all ranks, which ends when the result is dropped.
    ///
    /// # Errors
    /// Returns a rank whose operation has failed, so that its heap is closed.
    #[inline]
    pub fn access_heaps(&self) -> std::result::Result<HeapAccess<'_>, usize> {
        HeapAccess::begin(&self.heaps)
    }
}
