//! Memory of a rank that peers reach without staging, lent to callers.
//!
//! A heap is address space inside the rank's segment: pages cost nothing until
//! a block has them, and are given back when it is dropped. Large blocks get
//! huge pages at once, others small ones as they are touched.

use crate::segment::{HUGE_PAGE_BYTES, PAGE_BYTES, Segment};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use unisono_cuda::Element;

/// One rank's heap.
#[derive(Debug)]
pub struct Heap {
    segment: Arc<Segment>,
    base: usize,
    bytes: usize,
    /// Free ranges, by their beginning: bytes of each. No two touch.
    free: Mutex<BTreeMap<usize, usize>>,
}

/// A block of a heap, its caller's until dropped: zeros at first.
#[derive(Debug)]
pub struct HeapBlock {
    heap: Arc<Heap>,
    offset: usize,
    bytes: usize,
}

impl Heap {
    /// The heap of `bytes` bytes at `base` of `segment`.
    pub(crate) fn new(segment: Arc<Segment>, base: usize, bytes: usize) -> Self {
        let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let free = BTreeMap::from([(0, bytes)]);
        Self { segment, base, bytes, free: Mutex::new(free) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` bytes, from a page on; where they fill huge pages, with them, if the system has any.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there is no free range of that length.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<HeapBlock> {
        let offset = self.reserve(bytes).ok_or_else(|| {
            let most = self.bytes;
            let text =
                format!("{bytes} bytes are not free in a heap of {most}; UNISONO_HEAP_BYTES sets its size");
            Error::Misuse(text)
        })?;
        self.segment.fill_with_huge_pages(self.base + offset, bytes);
        Ok(HeapBlock { heap: Arc::clone(self), offset, bytes })
    }

    /// Takes the first free range in which so much fits, if possible from a huge page on where it fills one; where it is.
    fn reserve(&self, bytes: usize) -> Option<usize> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
        let huge = if bytes < HUGE_PAGE_BYTES { None } else { self.reserve_at(bytes, HUGE_PAGE_BYTES) };
        huge.or_else(|| self.reserve_at(bytes, PAGE_BYTES))
    }

    /// The same, at a multiple of `alignment`.
    fn reserve_at(&self, bytes: usize, alignment: usize) -> Option<usize> {
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

    /// Where in the heap the `bytes` bytes at `address` are, if they are all there.
    pub fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.checked_sub(self.segment.at(self.base, 0).addr())?;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset)
    }

    fn give_back(&self, offset: usize, bytes: usize) {
        let (mut begin, mut end) = (offset, offset + bytes.max(1).next_multiple_of(PAGE_BYTES));
        self.segment.discard(self.base + begin, end - begin);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((&before, &room)) = free.range(..begin).next_back()
            && before + room == begin
        {
            free.remove(&before);
            begin = before;
        }
        if let Some(room) = free.remove(&end) {
            end += room;
        }
        free.insert(begin, end - begin);
    }
}

impl HeapBlock {
    /// Its elements: as many as fit.
    pub fn elements<T: Element>(&self) -> &[T] {
        let pointer = self.pointer().cast::<T>();
        // SAFETY: mapped, zeroed memory of this length that belongs to this block alone; any bytes are a value of
        // T; aligned, because blocks begin on pages. Peers write it only during operations that its owner called
        // with a mutable borrow of it, and read it only during operations that borrow it: that is what the
        // library does on all ranks, which know each other by the job's secret.
        unsafe { std::slice::from_raw_parts(pointer, self.bytes / size_of::<T>()) }
    }

    /// Its elements, to write.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        let pointer = self.pointer().cast::<T>();
        // SAFETY: as in `elements`, and `&mut self` is the only borrow of the block.
        unsafe { std::slice::from_raw_parts_mut(pointer, self.bytes / size_of::<T>()) }
    }

    fn pointer(&self) -> *mut u8 {
        self.heap.segment.at(self.heap.base + self.offset, self.bytes)
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        self.heap.give_back(self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(segment: Segment) -> Arc<Heap> {
        Arc::new(Heap::new(Arc::new(segment), 4096, 64 << 10))
    }

    fn heaps() -> [Arc<Heap>; 2] {
        [heap(Segment::private(1 << 20).unwrap()), heap(Segment::create(1 << 20).unwrap())]
    }

    #[test]
    fn blocks_are_apart_and_come_back_as_zeros() {
        for heap in heaps() {
            let mut blocks: Vec<_> = (1..=4).map(|index| heap.take(index * 3000).unwrap()).collect();
            for (index, block) in blocks.iter_mut().enumerate() {
                block.elements_mut::<u8>().fill(index as u8 + 1);
            }
            for (index, block) in blocks.iter().enumerate() {
                assert!(block.elements::<u8>().iter().all(|&byte| byte == index as u8 + 1));
                assert_eq!(block.elements::<u32>().len(), (index + 1) * 750);
            }
            let second = blocks[1].offset;
            drop(blocks.remove(1));
            let again = heap.take(6000).unwrap();
            assert_eq!(again.offset, second);
            assert!(again.elements::<u8>().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn all_of_it_can_be_taken_again_and_no_more() {
        for heap in heaps() {
            for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
                let mut blocks: Vec<_> = (0..3).map(|_| Some(heap.take(20_000).unwrap())).collect();
                assert!(matches!(heap.take(20_000), Err(Error::Misuse(_))));
                order.iter().for_each(|&index| blocks[index] = None);
            }
            assert!(heap.take(64 << 10).is_ok());
            assert!(heap.take((64 << 10) + 1).is_err() && heap.take(usize::MAX).is_err());
        }
    }

    #[test]
    fn what_fills_huge_pages_begins_on_one_and_the_room_before_it_is_not_lost() {
        let segment = Arc::new(Segment::create(16 << 20).unwrap());
        let heap = Arc::new(Heap::new(Arc::clone(&segment), 4096, 12 << 20));
        let small = heap.take(100).unwrap();
        let mut large = heap.take(5 << 20).unwrap();
        assert_eq!((small.offset, heap.base + large.offset), (0, HUGE_PAGE_BYTES));
        assert!(large.elements::<u64>().iter().all(|&word| word == 0));
        large.elements_mut::<u8>().fill(7);
        assert_eq!(heap.take(1 << 20).unwrap().offset, PAGE_BYTES);
        let rest = heap.take(5 << 20).expect("what fits nowhere else begins on any page");
        assert!(!(heap.base + rest.offset).is_multiple_of(HUGE_PAGE_BYTES) && heap.take(2 << 20).is_err());
        drop(rest);
        drop((small, large));
        assert_eq!(segment.resident(), 0);
        let whole = heap.take((12 << 20) - HUGE_PAGE_BYTES).unwrap();
        assert!(whole.elements::<u8>().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn addresses_are_found_only_inside() {
        for heap in heaps() {
            let block = heap.take(8192).unwrap();
            let address = block.elements::<u8>().as_ptr().addr();
            assert_eq!(heap.offset_of(address + 16, 100), Some(block.offset + 16));
            assert_eq!(heap.offset_of(address, (64 << 10) - block.offset + 1), None);
            assert_eq!(heap.offset_of(address - 4097, 1), None);
            assert_eq!(heap.offset_of(&raw const heap as usize, 1), None);
        }
    }
}
