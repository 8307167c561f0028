//! Allocates memory of a rank that peers access without staging.
//!
//! A heap is address space inside the rank's segment. Pages cost nothing until a block uses them,
//! and they are returned when the block is dropped. Large blocks get huge pages at once. Others get
//! small pages when they are touched.

use crate::shm::private_pages;
use crate::sys::segment::{HUGE_PAGE_BYTES, PAGE_BYTES, Segment};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use unisono_reducers::Element;

/// The symmetric heap of one rank.
#[derive(Debug)]
pub struct SymmetricHeap {
    segment: Arc<Segment>,
    base: usize,
    bytes: usize,
    /// Free ranges: bytes of each, by its beginning. No two ranges touch.
    free: Mutex<BTreeMap<usize, usize>>,
    /// True if some pages are private, because a peer may still access the file.
    has_private_pages: AtomicBool,
}

/// A block of a heap, zeroed at first, that belongs to its caller until it is dropped.
#[derive(Debug)]
pub struct HeapAllocation {
    heap: Arc<SymmetricHeap>,
    offset: usize,
    bytes: usize,
}

impl SymmetricHeap {
    /// Creates the heap of `bytes` bytes at `base` of `segment`.
    pub(crate) fn new(segment: Arc<Segment>, base: usize, bytes: usize) -> Self {
        let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let free = BTreeMap::from([(0, bytes)]);
        Self { segment, base, bytes, free: Mutex::new(free), has_private_pages: AtomicBool::new(false) }
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Allocates `bytes` bytes, starting on a page. A range that fills huge pages gets them, if the
    /// system has any.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] if there is no free range of that length.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<HeapAllocation> {
        self.segment.map_part(self.base)?;
        let offset = self.find_free(bytes).ok_or_else(|| {
            let most = self.bytes;
            let text = format!(
                "{bytes} bytes are not free in a heap of {most}; UNISONO_SYMMETRIC_HEAP_BYTES sets its size"
            );
            Error::InvalidUsage(text)
        })?;
        self.segment.collapse_huge_pages(self.base + offset, bytes);
        Ok(HeapAllocation { heap: Arc::clone(self), offset, bytes })
    }

    /// Takes the first free range that fits and returns its offset. A range that fills a huge page
    /// begins on one if possible.
    fn find_free(&self, bytes: usize) -> Option<usize> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let huge =
            if bytes < HUGE_PAGE_BYTES { None } else { self.find_free_aligned(bytes, HUGE_PAGE_BYTES) };
        huge.or_else(|| self.find_free_aligned(bytes, PAGE_BYTES))
    }

    /// Takes the first free range that fits at a multiple of `alignment`.
    fn find_free_aligned(&self, bytes: usize, alignment: usize) -> Option<usize> {
        let begin_in = |begin: usize| (self.base + begin).next_multiple_of(alignment) - self.base;
        let fits =
            |begin: usize, end: usize| begin_in(begin).checked_add(bytes).is_some_and(|last| last <= end);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ranges = free.iter().map(|(&begin, &room)| (begin, begin + room));
        let (begin, end) = ranges.find(|&(begin, end)| fits(begin, end))?;
        let offset = begin_in(begin);
        free.remove(&begin);
        let left = [(begin, offset), (offset + bytes, end)];
        free.extend(
            left.into_iter().filter(|(begin, end)| begin < end).map(|(begin, end)| (begin, end - begin)),
        );
        Some(offset)
    }

    /// Returns the offset in the heap of the `bytes` bytes at `address`, if all of them are in it.
    pub fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        if self.bytes == 0 {
            return None;
        }
        // This uses one byte, because an empty range at a boundary could belong to the part before
        // the heap.
        let offset = address.checked_sub(self.segment.at(self.base, 1).addr())?;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset)
    }

    /// Returns true if peers access the heap through separate mappings.
    pub(super) fn is_shared_by_processes(&self) -> bool {
        self.segment.fd().is_some()
    }

    /// Makes parts of the heap, by offset, private to this process. The caller owns them.
    ///
    /// # Errors
    /// Returns the system's error. The parts may then be shared still.
    pub(super) fn make_private(&self, parts: &[Range<usize>]) -> rustix::io::Result<()> {
        self.has_private_pages.store(true, Ordering::Relaxed);
        let parts: Vec<_> = parts.iter().map(|part| self.base + part.start..self.base + part.end).collect();
        private_pages::make_private(&self.segment, &parts)
    }

    fn release(&self, offset: usize, bytes: usize) {
        let (mut begin, mut end) = (offset, offset + bytes.max(1).next_multiple_of(PAGE_BYTES));
        // A peer that still reads the file must not find zeros, because it would use them as a
        // result.
        let keeps_file = self.has_private_pages.load(Ordering::Relaxed);
        self.segment.discard(self.base + begin, end - begin, keeps_file);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((&previous, &room)) = free.range(..begin).next_back()
            && previous + room == begin
        {
            free.remove(&previous);
            begin = previous;
        }
        if let Some(room) = free.remove(&end) {
            end += room;
        }
        free.insert(begin, end - begin);
    }
}

impl HeapAllocation {
    /// Returns the elements of the block: as many as fit.
    ///
    /// # Panics
    /// Panics in a forked child of the process that allocated memory shared by processes.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let pointer = self.base_ptr().cast::<T>();
        // SAFETY: mapped, zeroed memory of this length that belongs to this block alone. Any bytes
        // are a value of T. The memory is aligned, because blocks begin on pages. Peers write it
        // only during operations that its owner called with a mutable borrow of it, and read it
        // only during operations that borrow it. Such an operation lasts as long as its
        // `HeapExposure`, which no access outlasts. The library does so on all ranks, which know
        // each other by the job's secret.
        unsafe { std::slice::from_raw_parts(pointer, self.bytes / size_of::<T>()) }
    }

    /// Returns the elements of the block, for writing.
    ///
    /// # Panics
    /// As [`HeapAllocation::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let pointer = self.base_ptr().cast::<T>();
        // SAFETY: as in `as_slice`, and `&mut self` is the only borrow of the block.
        unsafe { std::slice::from_raw_parts_mut(pointer, self.bytes / size_of::<T>()) }
    }

    fn base_ptr(&self) -> *mut u8 {
        self.heap.segment.check_process();
        self.heap.segment.at(self.heap.base + self.offset, self.bytes)
    }
}

impl Drop for HeapAllocation {
    fn drop(&mut self) {
        self.heap.release(self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::segment::Extents;

    fn heap(segment: Segment) -> Arc<SymmetricHeap> {
        Arc::new(SymmetricHeap::new(Arc::new(segment), 4096, 64 << 10))
    }

    fn heaps() -> [Arc<SymmetricHeap>; 2] {
        [heap(Segment::private(1 << 20).unwrap()), heap(Segment::create(1 << 20).unwrap())]
    }

    #[test]
    fn allocations_are_disjoint_and_zeroed() {
        for heap in heaps() {
            let mut blocks: Vec<_> = (1..=4).map(|index| heap.alloc(index * 3000).unwrap()).collect();
            for (index, block) in blocks.iter_mut().enumerate() {
                block.as_mut_slice::<u8>().fill(index as u8 + 1);
            }
            for (index, block) in blocks.iter().enumerate() {
                assert!(block.as_slice::<u8>().iter().all(|&byte| byte == index as u8 + 1));
                assert_eq!(block.as_slice::<u32>().len(), (index + 1) * 750);
            }
            let second = blocks[1].offset;
            drop(blocks.remove(1));
            let again = heap.alloc(6000).unwrap();
            assert_eq!(again.offset, second);
            assert!(again.as_slice::<u8>().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn freed_heap_can_be_fully_reallocated() {
        for heap in heaps() {
            for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
                let mut blocks: Vec<_> = (0..3).map(|_| Some(heap.alloc(20_000).unwrap())).collect();
                assert!(matches!(heap.alloc(20_000), Err(Error::InvalidUsage(_))));
                order.iter().for_each(|&index| blocks[index] = None);
            }
            assert!(heap.alloc(64 << 10).is_ok());
            assert!(heap.alloc((64 << 10) + 1).is_err() && heap.alloc(usize::MAX).is_err());
        }
    }

    #[test]
    fn large_allocations_are_huge_page_aligned_without_waste() {
        let segment = Arc::new(Segment::create(16 << 20).unwrap());
        let heap = Arc::new(SymmetricHeap::new(Arc::clone(&segment), 4096, 12 << 20));
        let small = heap.alloc(100).unwrap();
        let mut large = heap.alloc(5 << 20).unwrap();
        assert_eq!((small.offset, heap.base + large.offset), (0, HUGE_PAGE_BYTES));
        assert!(large.as_slice::<u64>().iter().all(|&word| word == 0));
        large.as_mut_slice::<u8>().fill(7);
        assert_eq!(heap.alloc(1 << 20).unwrap().offset, PAGE_BYTES);
        let unaligned = heap.alloc(5 << 20).expect("what fits nowhere else begins on any page");
        assert!(
            !(heap.base + unaligned.offset).is_multiple_of(HUGE_PAGE_BYTES) && heap.alloc(2 << 20).is_err()
        );
        drop(unaligned);
        drop((small, large));
        assert_eq!(segment.resident_bytes(), 0);
        let largest = heap.alloc((12 << 20) - HUGE_PAGE_BYTES).unwrap();
        assert!(largest.as_slice::<u8>().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn offset_of_rejects_outside_addresses() {
        for heap in heaps() {
            let block = heap.alloc(8192).unwrap();
            let address = block.as_slice::<u8>().as_ptr().addr();
            assert_eq!(heap.offset_of(address + 16, 100), Some(block.offset + 16));
            assert_eq!(heap.offset_of(address, (64 << 10) - block.offset + 1), None);
            assert_eq!(heap.offset_of(address - 4097, 1), None);
            assert_eq!(heap.offset_of(&raw const heap as usize, 1), None);
        }
    }

    #[test]
    fn offset_of_is_exact_beside_a_mapped_part() {
        let [bulk, heap, end] = [1, 2, 3].map(|pages| pages * HUGE_PAGE_BYTES);
        let extents = Extents { head_bytes: PAGE_BYTES, bulk: bulk..heap, heap: heap..end };
        let segment = Arc::new(Segment::private_parts(&extents).unwrap());
        segment.map_part(bulk).unwrap();
        let heap = Arc::new(SymmetricHeap::new(segment, heap, HUGE_PAGE_BYTES));
        let block = heap.alloc(8192).unwrap();
        let address = block.as_slice::<u8>().as_ptr().addr();
        assert_eq!(heap.offset_of(address, 8192), Some(block.offset));
    }
}
