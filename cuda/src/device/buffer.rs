//! Typed memory of a GPU, and views of it.
//!
//! Memory that kernels read and write is never a Rust reference: a view is an address and a length.
//! Two streams that write the same memory without order make a result wrong. They do not cause
//! undefined behavior in Rust. Events order streams. Within one stream, the order is that of the
//! calls.

use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use super::gpu::Gpu;
use super::memory::{Memory, MemoryRef};
use super::pinned::Pinned;
use super::pool::MemoryKind;
use super::stream::Stream;
use cudarc::driver::{result, sys};
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use unisono_reducers::Plain;

/// Elements in memory of a GPU. A dropped buffer's memory lasts until the work that uses it is
/// done.
pub struct Buffer<T: Plain> {
    pub(crate) memory: Arc<Memory>,
    count: usize,
    elements: PhantomData<fn() -> T>,
}

/// A part of a [`Buffer`], to read.
pub struct View<'a, T: Plain> {
    pub(crate) memory: &'a Arc<Memory>,
    first: usize,
    count: usize,
    elements: PhantomData<&'a T>,
}

/// A part of a [`Buffer`], to write.
pub struct ViewMut<'a, T: Plain>(pub(crate) View<'a, T>);

// SAFETY: a view is an address. Elements are reached through streams alone, which any thread may
// use.
unsafe impl<T: Plain> Send for View<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for View<'_, T> {}

impl<T: Plain> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Plain> Copy for View<'_, T> {}

impl Gpu {
    /// Allocates `count` elements, all bytes 0, and waits until they are set. [`Stream::alloc`]
    /// does not wait.
    pub fn alloc<T: Plain>(&self, count: usize) -> Result<Buffer<T>, GpuError> {
        self.alloc_in_units(count, 1)
    }

    /// Allocates as [`Gpu::alloc`] does, in memory of whole units of so many bytes.
    pub(crate) fn alloc_in_units<T: Plain>(&self, count: usize, unit: usize) -> Result<Buffer<T>, GpuError> {
        let bytes = count.saturating_mul(size_of::<T>()).max(1);
        let bytes = bytes.checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        let memory = Memory::new(self, MemoryKind::Device, bytes)?;
        let buffer = Buffer { memory, count, elements: PhantomData };
        if count == 0 {
            return Ok(buffer);
        }
        let (_exempt, house) = (RelaxedCapture::enter(), &self.0.house);
        // SAFETY: the memory is new, and has this length.
        unsafe { result::memset_d8_async(buffer.address(), 0, buffer.bytes(), house.cu_stream()) }
            .or_gpu_error("cuMemsetD8Async")?;
        self.0.utility.synchronize()?;
        Ok(buffer)
    }

    /// The same elements in memory of the GPU.
    pub fn upload<T: Plain>(&self, elements: &[T]) -> Result<Buffer<T>, GpuError> {
        let buffer = Buffer::new(self, elements.len())?;
        let (source, house) = (elements.as_ptr().cast(), &self.0.house);
        let _exempt = RelaxedCapture::enter();
        // SAFETY: the memory is new, has this length, and `elements` outlives the wait.
        unsafe { sys::cuMemcpyHtoDAsync_v2(buffer.address(), source, buffer.bytes(), house.cu_stream()) }
            .or_gpu_error("cuMemcpyHtoDAsync")?;
        self.0.utility.synchronize()?;
        Ok(buffer)
    }
}

impl Stream {
    /// Allocates `count` elements, all bytes 0 for work that is enqueued in this stream afterwards.
    /// Other streams must wait for this one.
    ///
    /// The call does not wait. It can take memory of a dropped buffer that only this stream has
    /// used, even while work in this stream still uses it.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    pub fn alloc<T: Plain>(&self, count: usize) -> Result<Buffer<T>, GpuError> {
        let buffer = self.alloc_uninit(count)?;
        if count == 0 {
            return Ok(buffer);
        }
        self.enqueue(&[&buffer.memory], "cuMemsetD8Async", |handle| {
            // SAFETY: the memory has this length.
            unsafe { sys::cuMemsetD8Async(buffer.address(), 0, buffer.bytes(), handle) }
        })?;
        Ok(buffer)
    }

    /// Allocates `count` elements without setting them, for memory that is written before it is
    /// read. Otherwise like [`Stream::alloc`].
    ///
    /// # Errors
    /// The GPU has not enough memory.
    pub fn alloc_uninit<T: Plain>(&self, count: usize) -> Result<Buffer<T>, GpuError> {
        let memory = Memory::stream_ordered(self.gpu(), &self.queue, count.saturating_mul(size_of::<T>()))?;
        Ok(Buffer { memory, count, elements: PhantomData })
    }

    /// Copies elements to new memory of the GPU, for this stream. The call returns when the copy is
    /// done, and does not wait for work that is enqueued.
    ///
    /// # Errors
    /// The driver fails.
    pub fn upload<T: Plain>(&self, elements: &[T]) -> Result<Buffer<T>, GpuError> {
        self.queue.count_written(size_of_val(elements));
        self.gpu().upload(elements)
    }

    /// Copies elements to new memory of the GPU through page-locked memory. The call does not wait,
    /// not even for the copy: `elements` may change afterwards.
    ///
    /// # Errors
    /// The driver fails.
    pub fn upload_pinned<T: Plain>(&self, elements: &[T]) -> Result<Buffer<T>, GpuError> {
        self.queue.count_written(size_of_val(elements));
        let buffer = self.alloc_uninit(elements.len())?;
        if elements.is_empty() {
            return Ok(buffer);
        }
        let staged = self.gpu().pin_copy(elements)?;
        self.enqueue(&[&buffer.memory, &staged.memory], "cuMemcpyHtoDAsync", |handle| {
            let source = staged.address() as *const std::ffi::c_void;
            // SAFETY: both have this length, and last until the copy is done, as the call says.
            unsafe { sys::cuMemcpyHtoDAsync_v2(buffer.address(), source, buffer.bytes(), handle) }
        })?;
        Ok(buffer)
    }
}

impl Stream {
    /// Enqueues a copy of page-locked bytes to the same place of a buffer. The call does not wait,
    /// so the bytes must stay as they are until the copy is done.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The range is not inside both.
    pub fn copy_pinned(
        &self,
        to: &Buffer<u8>,
        from: &Pinned<u8>,
        range: Range<usize>,
    ) -> Result<(), GpuError> {
        self.gpu().check_same_gpu(to.gpu(), "memory")?;
        assert!(range.start <= range.end && range.end <= to.len().min(from.len()), "{range:?}");
        let (offset, bytes) = (range.start as u64, range.len());
        self.enqueue(&[&to.memory, &from.memory], "cuMemcpyHtoDAsync", |handle| {
            let source = (from.address() + offset) as *const std::ffi::c_void;
            // SAFETY: the range is inside both, which last until the copy is done, as the call
            // says.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.address() + offset, source, bytes, handle) }
        })
    }
}

impl<T: Plain> Buffer<T> {
    fn new(gpu: &Gpu, count: usize) -> Result<Self, GpuError> {
        let bytes = count.saturating_mul(size_of::<T>());
        let memory = Memory::new(gpu, MemoryKind::Device, bytes)?;
        Ok(Self { memory, count, elements: PhantomData })
    }

    /// Elements in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Gpu {
        &self.memory.gpu
    }

    /// Returns the address of the first element, for kernels.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The part `range`.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn view(&self, range: impl RangeBounds<usize>) -> View<'_, T> {
        View::new(&self.memory, 0, self.count, range)
    }

    /// The part `range`, to write.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn view_mut(&mut self, range: impl RangeBounds<usize>) -> ViewMut<'_, T> {
        ViewMut(View::new(&self.memory, 0, self.count, range))
    }

    /// Writes all elements, when what is in the stream is done; waits for that.
    pub fn write(&mut self, stream: &Stream, elements: &[T]) -> Result<(), GpuError> {
        self.view_mut(..).write(stream, elements)
    }

    /// Reads all elements, when what is in the stream is done; waits for that.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>, GpuError> {
        self.view(..).to_vec(stream)
    }

    /// Records that work in this stream uses the memory. Call it after a launch that was given the
    /// address. The memory then lasts until that work is done, and as long as the graph if the
    /// stream is being captured.
    pub fn record_stream(&self, stream: &Stream) {
        stream.record_use(&self.memory);
    }

    fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns a handle to the memory without its elements.
    pub fn memory_ref(&self) -> MemoryRef {
        MemoryRef::new(&self.memory)
    }
}

impl<'a, T: Plain> View<'a, T> {
    /// The part `range` of `count` elements from `first` on.
    fn new(memory: &'a Arc<Memory>, first: usize, count: usize, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => count,
        };
        assert!(start <= end && end <= count, "{start}..{end} of {count} elements");
        Self { memory, first: first + start, count: end - start, elements: PhantomData }
    }

    /// Elements in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Gpu {
        &self.memory.gpu
    }

    /// Returns the address of the first element, for kernels.
    pub fn address(&self) -> u64 {
        self.memory.address() + (self.first * size_of::<T>()) as u64
    }

    /// The part `range` of it.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn view(&self, range: impl RangeBounds<usize>) -> View<'a, T> {
        View::new(self.memory, self.first, self.count, range)
    }

    /// Reads its elements, when what is in the stream is done; waits for that.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>, GpuError> {
        let mut elements = Vec::new();
        let reserved = elements.try_reserve_exact(self.count);
        let bytes = self.count * size_of::<T>();
        reserved.map_err(|_| GpuError::OutOfMemory { bytes, place: "on the host".to_owned() })?;
        self.fetch(stream, elements.as_mut_ptr())?;
        // SAFETY: all have been written, and any bytes are a value.
        unsafe { elements.set_len(self.count) };
        Ok(elements)
    }

    /// Reads its elements into `to`, when what is in the stream is done; waits for that.
    pub fn read(&self, stream: &Stream, to: &mut [T]) -> Result<(), GpuError> {
        check_length(to.len(), self.count)?;
        self.fetch(stream, to.as_mut_ptr())
    }

    /// Records that work in this stream uses the memory: see [`Buffer::record_stream`].
    pub fn record_stream(&self, stream: &Stream) {
        stream.record_use(self.memory);
    }

    fn fetch(&self, stream: &Stream, target: *mut T) -> Result<(), GpuError> {
        stream.gpu().check_same_gpu(self.gpu(), "memory")?;
        stream.queue.count_read(self.bytes());
        stream.copy_and_wait(self.memory, "cuMemcpyDtoHAsync", |handle| {
            // SAFETY: `target` has room for as many, until the wait is over.
            unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), self.address(), self.bytes(), handle) }
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        self.memory
    }
}

impl<T: Plain> ViewMut<'_, T> {
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        self.0.memory
    }

    /// Elements in it.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Gpu {
        self.0.gpu()
    }

    /// Returns the address of the first element, for kernels.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// The same part to read, while it is borrowed for that.
    pub fn as_view(&self) -> View<'_, T> {
        self.0.view(..)
    }

    /// The part `range` of it.
    ///
    /// # Panics
    /// If `range` is not inside.
    pub fn view_mut(&mut self, range: impl RangeBounds<usize>) -> ViewMut<'_, T> {
        ViewMut(self.0.view(range))
    }

    /// Two parts: before `middle`, and from there on.
    ///
    /// # Panics
    /// If `middle` is not inside.
    pub fn split_at_mut(&mut self, middle: usize) -> (ViewMut<'_, T>, ViewMut<'_, T>) {
        (ViewMut(self.0.view(..middle)), ViewMut(self.0.view(middle..)))
    }

    /// Writes its elements, when what is in the stream is done; waits for that.
    pub fn write(&mut self, stream: &Stream, elements: &[T]) -> Result<(), GpuError> {
        check_length(elements.len(), self.0.count)?;
        stream.gpu().check_same_gpu(self.gpu(), "memory")?;
        let source = elements.as_ptr().cast();
        stream.queue.count_written(self.0.bytes());
        stream.copy_and_wait(self.0.memory, "cuMemcpyHtoDAsync", |handle| {
            // SAFETY: `elements` are as many, and outlive the wait.
            unsafe { sys::cuMemcpyHtoDAsync_v2(self.address(), source, self.0.bytes(), handle) }
        })
    }

    /// Records that work in this stream uses the memory: see [`Buffer::record_stream`].
    pub fn record_stream(&self, stream: &Stream) {
        self.0.record_stream(stream);
    }
}

pub(crate) fn check_length(found: usize, wanted: usize) -> Result<(), GpuError> {
    if found == wanted { Ok(()) } else { Err(GpuError::LengthMismatch { found, wanted }) }
}
