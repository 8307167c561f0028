//! Memory of foreign callers: a pointer and a length.

/// Returns memory as a slice. No memory is needed for no bytes.
///
/// # Safety
/// Unless there are none, `bytes` bytes at `start` are valid for reads for the life of the result,
/// and nobody writes them meanwhile.
pub unsafe fn slice<'a>(start: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: valid by the contract.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}

/// Returns memory as a slice that can be written. No memory is needed for no bytes.
///
/// # Safety
/// Unless there are none, `bytes` bytes at `start` are valid for reads and writes for the life of
/// the result, and nobody else accesses them meanwhile.
pub unsafe fn slice_mut<'a>(start: *mut u8, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: valid by the contract.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

/// Memory that a foreign caller leaves to an operation until the operation is done.
#[derive(Debug)]
pub struct RawMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the value by the contract of `new`, on whatever thread.
unsafe impl Send for RawMemory {}

impl RawMemory {
    /// Takes over `bytes` bytes at `start`.
    ///
    /// # Safety
    /// As [`slice_mut`] for the life of the value. Memory that is only read through
    /// [`RawMemory::as_slice`] needs the contract of [`slice()`] alone.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: by the contract of `new`.
        unsafe { slice(self.start, self.bytes) }
    }

    /// Returns the bytes for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: by the contract of `new`.
        unsafe { slice_mut(self.start, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_memory_is_that_of_the_caller_and_null_is_empty() {
        let mut bytes = [1u8, 2, 3];
        // SAFETY: the array outlives the memory, and nothing else accesses it meanwhile.
        let mut memory = unsafe { RawMemory::new(bytes.as_mut_ptr(), 2) };
        memory.as_mut_slice()[1] = 7;
        assert_eq!(memory.as_slice(), [1, 7]);
        assert_eq!(bytes, [1, 7, 3]);
        // SAFETY: there are no bytes.
        let mut empty = unsafe { RawMemory::new(std::ptr::null_mut(), 0) };
        assert!(empty.as_slice().is_empty() && empty.as_mut_slice().is_empty());
    }
}
