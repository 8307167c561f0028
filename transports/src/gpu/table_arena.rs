//! Memory for the tables of programs and buffers, reserved when ranks meet.
//!
//! A driver may wait for all running kernels before it allocates, pins, frees, or copies pageable
//! memory. A kernel of another rank on the same GPU may be waiting for the launch that needs the
//! table, so the two would wait for each other. A table is therefore written to page-locked memory
//! that is reserved already. A copy that precedes the launch in its stream brings it to the GPU.

use crate::Result;
use crate::gpu::launch_counter::LaunchCounter;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unisono_cuda::device::{Buffer, CaptureState, Gpu, MemoryRef, Pinned, Stream};
use unisono_reducers::Plain;

/// The reserved memory of one communicator.
pub(crate) struct TableArena {
    device: Buffer<u8>,
    counter: Arc<LaunchCounter>,
    state: Mutex<ArenaState>,
    /// True if tables wait to be copied.
    has_pending: AtomicBool,
}

struct ArenaState {
    /// Page-locked memory of the same length: a table has the same place in both.
    staging: Pinned<u8>,
    /// Free ranges in the order of their starts. No two of them touch.
    free: Vec<Range<usize>>,
    /// Ranges of dropped tables, with the number of the last launch that may read each.
    retired: VecDeque<(u64, Range<usize>)>,
    /// Tables that are written and not yet copied to the GPU.
    pending: Vec<Range<usize>>,
}

/// A table in GPU memory.
pub(crate) struct Table<T: Plain> {
    memory: TableMemory<T>,
    count: usize,
    elements: PhantomData<fn() -> T>,
}

enum TableMemory<T: Plain> {
    /// A range of the arena.
    Reserved(ReservedRange),
    /// Memory of its own, because the arena had no room.
    Own(Buffer<T>),
}

struct ReservedRange {
    arena: Arc<TableArena>,
    range: Range<usize>,
    /// True if a graph repeats launches that read the table. It then stays for as long as the
    /// arena.
    is_captured: AtomicBool,
}

impl TableArena {
    /// Reserves `bytes` bytes on the GPU, and as many in page-locked memory.
    pub(crate) fn new(gpu: &Gpu, bytes: usize, counter: &Arc<LaunchCounter>) -> Result<Arc<Self>> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let state = ArenaState {
            staging: gpu.pin(bytes)?,
            free: Vec::from_iter(std::iter::once(0..bytes)),
            retired: VecDeque::new(),
            pending: Vec::new(),
        };
        Ok(Arc::new(Self {
            device: gpu.alloc(bytes)?,
            counter: Arc::clone(counter),
            state: Mutex::new(state),
            has_pending: AtomicBool::new(false),
        }))
    }

    /// Writes a table. It is on the GPU for launches that follow the next [`TableArena::flush`].
    /// A table that finds no room in the arena gets memory of its own, and then the call waits.
    pub(crate) fn table<T: Plain>(self: &Arc<Self>, elements: &[T]) -> Result<Table<T>> {
        let memory = match self.reserve(elements) {
            Some(range) => TableMemory::Reserved(ReservedRange {
                arena: Arc::clone(self),
                range,
                is_captured: AtomicBool::new(false),
            }),
            None => TableMemory::Own(self.device.gpu().upload(elements)?),
        };
        Ok(Table { memory, count: elements.len(), elements: PhantomData })
    }

    /// Writes elements to a free range, if there is one.
    fn reserve<T: Plain>(&self, elements: &[T]) -> Option<Range<usize>> {
        let length = size_of_val(elements).max(1).next_multiple_of(ALIGNMENT);
        let mut state = self.lock();
        state.reclaim(self.counter.completed());
        let index = state.free.iter().position(|free| free.len() >= length)?;
        let start = state.free[index].start;
        state.free[index].start += length;
        if state.free[index].is_empty() {
            state.free.remove(index);
        }
        state.staging.store(start, elements);
        state.pending.push(start..start + length);
        self.has_pending.store(true, Ordering::Release);
        Some(start..start + length)
    }

    /// Enqueues the copies of all new tables in `stream`, before the launch that reads them.
    ///
    /// Work that a graph records runs later than other launches that may need the same tables. So a
    /// captured stream gets no copies: the call copies by itself, and waits.
    pub(crate) fn flush(&self, stream: &Stream, capture: CaptureState) -> Result<()> {
        if !self.has_pending.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = self.lock();
        let utility = (capture != CaptureState::None).then(|| self.device.gpu().utility_stream());
        let copies = utility.as_ref().unwrap_or(stream);
        for range in &state.pending {
            copies.copy_pinned(&self.device, &state.staging, range.clone())?;
        }
        utility.map_or(Ok(()), |utility| utility.synchronize())?;
        // Tables stay pending where a copy fails, so that the next launch does not read what never
        // came.
        state.pending.clear();
        self.has_pending.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns handles to its memory, on the GPU and page-locked.
    pub(crate) fn memory_refs(&self) -> [MemoryRef; 2] {
        [self.device.memory_ref(), self.lock().staging.memory_ref()]
    }

    fn release(&self, range: Range<usize>) {
        // Launches that were enqueued may still read it, and its copy may still be under way.
        let last = self.counter.enqueued();
        let mut state = self.lock();
        state.pending.retain(|pending| *pending != range);
        state.retired.push_back((last, range));
    }

    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArenaState {
    /// Frees the ranges that no launch reads any more.
    fn reclaim(&mut self, completed: u64) {
        while self.retired.front().is_some_and(|(last, _)| *last <= completed) {
            if let Some((_, range)) = self.retired.pop_front() {
                insert_free(&mut self.free, range);
            }
        }
    }
}

/// Adds a free range to those of an arena, joined with those that it touches.
fn insert_free(free: &mut Vec<Range<usize>>, range: Range<usize>) {
    let index = free.partition_point(|free| free.start < range.start);
    free.insert(index, range);
    if free.get(index + 1).is_some_and(|next| next.start == free[index].end) {
        free[index].end = free.remove(index + 1).end;
    }
    if index > 0 && free[index - 1].end == free[index].start {
        free[index - 1].end = free.remove(index).end;
    }
}

impl<T: Plain> Table<T> {
    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the address of the first element, for kernels.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            TableMemory::Reserved(reserved) => reserved.arena.device.address() + reserved.range.start as u64,
            TableMemory::Own(buffer) => buffer.address(),
        }
    }

    /// Records that a launch in `stream` reads the table.
    pub(crate) fn record_use(&self, stream: &Stream, capture: CaptureState) {
        match &self.memory {
            // The endpoint keeps the arena itself.
            TableMemory::Reserved(reserved) if capture != CaptureState::None => {
                reserved.is_captured.store(true, Ordering::Relaxed);
            }
            TableMemory::Reserved(_) => {}
            TableMemory::Own(buffer) => stream.record_memory(capture, &[buffer.memory_ref()]),
        }
    }
}

impl Drop for ReservedRange {
    fn drop(&mut self) {
        if !*self.is_captured.get_mut() {
            self.arena.release(self.range.clone());
        }
    }
}

/// Every table begins at a multiple of this number of bytes, so that kernels may load words of 16.
const ALIGNMENT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ranges_that_touch_are_joined() {
        let mut free = vec![0..64, 256..320];
        insert_free(&mut free, 128..192);
        assert_eq!(free, [0..64, 128..192, 256..320]);
        insert_free(&mut free, 64..128);
        assert_eq!(free, [0..192, 256..320]);
        insert_free(&mut free, 192..256);
        assert_eq!((free.len(), &free[0]), (1, &(0..320)));
    }
}
