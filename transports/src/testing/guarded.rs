//! Memory between two pages that no thread may touch, to notice accesses outside of a buffer.

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ops::Range;
use std::ptr::NonNull;

/// A buffer that ends at a page without access, or begins behind one.
///
/// The room beside the buffer holds a pattern, which [`Guarded::is_intact`] compares.
#[derive(Debug)]
pub struct Guarded {
    /// The first guard page. The room and the last guard page follow it.
    base: NonNull<u8>,
    room_bytes: usize,
    buffer: Range<usize>,
}

// SAFETY: the mapping belongs to this value alone, and is reached only through borrows of it.
unsafe impl Send for Guarded {}

impl Guarded {
    /// Creates a buffer of `bytes` bytes that are `fill`: at the end of its room, or at its
    /// beginning.
    ///
    /// # Panics
    /// Panics if the system has no memory.
    pub fn new(bytes: usize, at_end: bool, fill: u8) -> Self {
        // At least one byte beside the buffer holds the pattern.
        let room_bytes = (bytes + 1).next_multiple_of(PAGE_BYTES);
        let mapped_bytes = room_bytes + 2 * PAGE_BYTES;
        // SAFETY: a new mapping, at an address that the system chooses.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped_bytes, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let base = NonNull::new(base.expect("memory").cast::<u8>()).expect("a mapping");
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the room lies inside the mapping that was just made.
        unsafe { mprotect(base.as_ptr().add(PAGE_BYTES).cast(), room_bytes, flags) }.expect("memory");
        let start = if at_end { room_bytes - bytes } else { 0 };
        let mut new = Self { base, room_bytes, buffer: start..start + bytes };
        new.room_mut().fill(PATTERN);
        new.bytes_mut().fill(fill);
        new
    }

    /// Creates a buffer of these elements, as [`Guarded::new`] does.
    pub fn of(elements: &[f32], at_end: bool) -> Self {
        let mut new = Self::new(size_of_val(elements), at_end, 0);
        new.elements_mut().copy_from_slice(elements);
        new
    }

    /// Returns the buffer.
    pub fn bytes(&self) -> &[u8] {
        &self.room()[self.buffer.clone()]
    }

    /// Returns the buffer for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let buffer = self.buffer.clone();
        &mut self.room_mut()[buffer]
    }

    /// Returns the buffer as elements.
    ///
    /// # Panics
    /// Panics if its length is no multiple of theirs.
    pub fn elements(&self) -> &[f32] {
        // SAFETY: all bytes are elements.
        let (head, elements, tail) = unsafe { self.bytes().align_to::<f32>() };
        assert!(head.is_empty() && tail.is_empty(), "whole elements");
        elements
    }

    /// Returns the buffer as elements, for writing.
    ///
    /// # Panics
    /// Panics if its length is no multiple of theirs.
    pub fn elements_mut(&mut self) -> &mut [f32] {
        // SAFETY: all bytes are elements, and all elements are bytes.
        let (head, elements, tail) = unsafe { self.bytes_mut().align_to_mut::<f32>() };
        assert!(head.is_empty() && tail.is_empty(), "whole elements");
        elements
    }

    /// Returns true if nothing wrote into the room beside the buffer.
    pub fn is_intact(&self) -> bool {
        let (head, tail) = (&self.room()[..self.buffer.start], &self.room()[self.buffer.end..]);
        head.iter().chain(tail).all(|&byte| byte == PATTERN)
    }

    fn room(&self) -> &[u8] {
        // SAFETY: the room is mapped while this lives, and its bytes are initialized.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(PAGE_BYTES), self.room_bytes) }
    }

    fn room_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(PAGE_BYTES), self.room_bytes) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing borrows any more. If the system refuses, it
        // stays until the process ends.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.room_bytes + 2 * PAGE_BYTES) };
    }
}

const PAGE_BYTES: usize = 4096;
/// The bytes beside a buffer.
const PATTERN: u8 = 0xa5;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn guarded_buffers_touch_a_page_without_access() {
        for (bytes, at_end) in [(0, true), (1, true), (4096, true), (4095, false), (8192, false)] {
            let mut guarded = Guarded::new(bytes, at_end, 7);
            assert_eq!(guarded.bytes(), vec![7; bytes]);
            let (buffer, room) = (guarded.buffer.clone(), guarded.room_bytes);
            assert!(if at_end { buffer.end == room } else { buffer.start == 0 });
            guarded.bytes_mut().fill(9);
            assert!(guarded.is_intact());
            let offset = if at_end { 0 } else { room - 1 };
            guarded.room_mut()[offset] ^= 1;
            assert!(!guarded.is_intact());
        }
    }
}
