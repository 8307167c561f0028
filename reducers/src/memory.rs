//! Byte ranges that another rank may write or read at the same time.
//!
//! A `&[u8]` promises the compiler that nothing writes the bytes. Memory shared with a peer process
//! cannot promise that, so it is never turned into a reference. The types [`Source`] and [`Target`]
//! are a pointer, a length and a lifetime. Only the copy and reduce routines of this crate access
//! the bytes. A peer that writes at the wrong time can make a result wrong. It cannot cause
//! undefined behavior or an out-of-bounds read.

use std::marker::PhantomData;
use std::ops::Range;

/// Memory to read from: an ordinary slice, or memory a peer can write.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pointer: *const u8,
    bytes: usize,
    lifetime: PhantomData<&'a [u8]>,
}

/// Memory to write to: an ordinary mutable slice, or memory a peer can read.
#[derive(Debug)]
pub struct Target<'a> {
    pointer: *mut u8,
    bytes: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `Source` only ever reads, as a `&[u8]` does, and `&[u8]` is `Send`.
unsafe impl Send for Source<'_> {}
// SAFETY: a `Target` is as exclusive as the `&mut [u8]` it stands for, which is `Send`.
unsafe impl Send for Target<'_> {}

impl<'a> Source<'a> {
    /// Wraps raw memory.
    ///
    /// # Safety
    /// - `pointer` is valid for reads of `bytes` bytes for all of `'a`.
    /// - This process has no `&mut` to the memory during `'a`. Other ranks may write it: the bytes
    ///   read are then unspecified.
    pub unsafe fn from_raw(pointer: *const u8, bytes: usize) -> Self {
        Self { pointer, bytes, lifetime: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The part `range` of it.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        // SAFETY: in bounds by the assertion, so still one allocation and the same lifetime.
        unsafe { Self::from_raw(self.pointer.add(range.start), range.end - range.start) }
    }

    /// Address of the first byte, for system calls and the reducers.
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }
}

impl<'a> Target<'a> {
    /// Wraps raw memory.
    ///
    /// # Safety
    /// - `pointer` is valid for reads and writes of `bytes` bytes for all of `'a`.
    /// - This process has no other reference to the memory during `'a`.
    pub unsafe fn from_raw(pointer: *mut u8, bytes: usize) -> Self {
        Self { pointer, bytes, lifetime: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The part `range` of it, borrowed from this one.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn slice(&mut self, range: Range<usize>) -> Target<'_> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        // SAFETY: in bounds by the assertion, and `&mut self` keeps it exclusive.
        unsafe { Target::from_raw(self.pointer.add(range.start), range.end - range.start) }
    }

    /// Address of the first byte, for system calls and the reducers.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a shared slice is valid for reads for its whole lifetime.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: a mutable slice is valid and exclusive for its whole lifetime.
        unsafe { Self::from_raw(bytes.as_mut_ptr(), bytes.len()) }
    }
}
