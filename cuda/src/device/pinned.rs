//! Page-locked memory of the host, which kernels reach as well.

use super::arguments::WaitReport;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{Memory, MemoryRef};
use super::pool::MemoryKind;
use super::stream::Stream;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use unisono_reducers::Plain;
use unisono_reducers::{Source, Target};

/// Elements in memory of the host that kernels read and write; they may do so at any time.
///
/// When it is dropped, the memory lasts until the work that uses it is done.
pub struct Pinned<T: Plain> {
    pub(crate) memory: Arc<Memory>,
    count: usize,
    elements: PhantomData<fn() -> T>,
}

impl Gpu {
    /// `count` elements of page-locked memory, all bytes 0.
    pub fn pin<T: Plain>(&self, count: usize) -> Result<Pinned<T>, GpuError> {
        let bytes = count.saturating_mul(size_of::<T>());
        let memory = Memory::new(self, MemoryKind::Host, bytes)?;
        // SAFETY: the memory has this length, and this is the only handle.
        unsafe { std::ptr::write_bytes(memory.address() as *mut u8, 0, bytes) };
        Ok(Pinned { memory, count, elements: PhantomData })
    }
}

impl Gpu {
    /// The same elements in page-locked memory.
    pub(crate) fn pin_copy<T: Plain>(&self, elements: &[T]) -> Result<Pinned<T>, GpuError> {
        let memory = Memory::new(self, MemoryKind::Host, size_of_val(elements))?;
        // SAFETY: the memory has this length and is aligned, and this is the only handle.
        unsafe {
            std::ptr::copy_nonoverlapping(elements.as_ptr(), memory.address() as *mut T, elements.len());
        }
        Ok(Pinned { memory, count: elements.len(), elements: PhantomData })
    }
}

impl<T: Plain> Pinned<T> {
    /// Elements in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the address for kernels, which is the address on the host too.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Reads the element at `index`. A kernel may be writing it at the same time.
    ///
    /// # Panics
    /// The index is out of range.
    pub fn get(&self, index: usize) -> T {
        assert!(index < self.count, "{index} of {} elements", self.count);
        let mut value = MaybeUninit::<T>::uninit();
        let target = value.as_mut_ptr().cast::<u8>();
        let source = (self.address() as usize + index * size_of::<T>()) as *mut u8;
        for offset in 0..size_of::<T>() {
            // SAFETY: both are in range. Other writes of this process are atomic while `self` is
            // borrowed.
            unsafe {
                target.add(offset).write(AtomicU8::from_ptr(source.add(offset)).load(Ordering::Relaxed))
            };
        }
        // SAFETY: all bytes are written, and any bytes are a value.
        unsafe { value.assume_init() }
    }

    /// Writes the element at `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn set(&mut self, index: usize, value: T) {
        assert!(index < self.count, "{index} of {} elements", self.count);
        // SAFETY: in range, aligned as page-locked memory is, and `&mut self` excludes other
        // accesses of the host.
        unsafe { (self.address() as *mut T).add(index).write_volatile(value) };
    }

    /// Returns a handle to the memory without its elements.
    pub fn memory_ref(&self) -> MemoryRef {
        MemoryRef::new(&self.memory)
    }

    /// Records that work in this stream uses the memory: see
    /// [`Buffer::record_stream`](super::Buffer::record_stream).
    pub fn record_stream(&self, stream: &Stream) {
        stream.record_use(&self.memory);
    }
}

impl Pinned<WaitReport> {
    /// Reads the report of a launch. Unless its state says that the report is complete, the other
    /// fields are all zeros.
    ///
    /// # Panics
    /// There is no element.
    pub fn read_report(&self) -> WaitReport {
        assert!(self.count > 0, "no report");
        // SAFETY: the state is the first word of the report, and aligned.
        let state = unsafe { AtomicU32::from_ptr(self.address() as *mut u32) };
        // A kernel writes the state last, and releases what it wrote before. Without this order the
        // host could see the new state with old fields.
        match state.load(Ordering::Acquire) {
            0 | CLAIMED => WaitReport::OK,
            state => WaitReport { state, ..self.get(0) },
        }
    }
}

/// The state of a report that a kernel is writing.
const CLAIMED: u32 = 1;

impl Pinned<u8> {
    /// Writes elements to the bytes from `at` on.
    ///
    /// # Panics
    /// The elements are not inside, or `at` is not aligned for them.
    pub fn store<T: Plain>(&mut self, at: usize, elements: &[T]) {
        let bytes = size_of_val(elements);
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.count), "{bytes} bytes from {at}");
        let target = (self.address() as usize + at) as *mut T;
        assert!(target.is_aligned(), "{at} is not aligned");
        // SAFETY: the range is inside and aligned. On the host, `&mut self` excludes other
        // accesses.
        unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr(), target, elements.len()) };
    }

    /// The bytes `range`, to copy from.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        // SAFETY: the memory lives as long as `self`. On the host only `target` writes it, and it
        // needs `&mut self`.
        unsafe { Source::from_raw(self.address() as *const u8, self.count) }.slice(range)
    }

    /// All bytes, to copy to.
    pub fn target(&mut self) -> Target<'_> {
        // SAFETY: the memory lives as long as `self`, which is exclusive.
        unsafe { Target::from_raw(self.address() as *mut u8, self.count) }
    }
}

impl Pinned<u32> {
    /// The elements as words that kernels and threads read and write in any order.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the memory lives as long as `self`, is aligned, and the host writes it through
        // atomics or `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address() as *const AtomicU32, self.count) }
    }
}

impl Pinned<u64> {
    /// The elements as words that kernels and threads read and write in any order.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: as for words of 32 bits.
        unsafe { std::slice::from_raw_parts(self.address() as *const AtomicU64, self.count) }
    }
}
