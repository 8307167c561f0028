//! Memory accounting: current and peak bytes per class.
//!
//! All large vectors of a rank come from one [`Allocator`] per rank. Freed vectors are cached
//! for the next request of the same class and length, so that a second step allocates nothing. A
//! vector never changes its class: state that stays would take it from values that come again.

use crate::gpu_timeline::GpuTimeline;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use unisono::{Element, bf16};
use unisono_cuda::device::Gpu;
use unisono_cuda::device::compute::Compute;

/// Purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocClass {
    /// Parameters that modules compute with.
    Weights,
    /// Gradients.
    Gradients,
    /// Full-precision copies of the weights, and moments.
    Optimizer,
    /// Values that forward saves for backward, and values between modules.
    Activations,
    /// State in files instead of memory.
    Offloaded,
    /// Buffers for communication and conversion.
    Buffers,
}

impl AllocClass {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Weights, Self::Gradients, Self::Optimizer, Self::Activations, Self::Offloaded, Self::Buffers];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Offloaded => "offloaded",
            Self::Buffers => "buffers",
        }
    }
}

/// Bytes of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassUsage {
    /// Bytes in use.
    pub current: usize,
    /// Maximum bytes in use since the last [`Allocator::reset_peaks`].
    pub peak: usize,
}

/// Thread that reuses the cached vectors of an allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum CacheOwner {
    #[default]
    Compute,
    Communication,
}

/// Allocator of one rank. Clones share it.
#[derive(Clone, Default)]
pub struct Allocator {
    lock_stats: Arc<Mutex<AllocStats>>,
    owner: CacheOwner,
    lane: Option<Arc<Compute>>,
    timeline: Option<GpuTimeline>,
}

/// Cached vectors by thread, class and length; opaque.
#[derive(Default)]
pub struct FreeList<T>(HashMap<(CacheOwner, AllocClass, usize), Vec<Vec<T>>>);

/// Accounts of an [`Allocator`]; opaque.
#[derive(Default)]
pub struct AllocStats {
    usage: [ClassUsage; AllocClass::ALL.len()],
    fresh_allocations: u64,
    floats: FreeList<f32>,
    bf16s: FreeList<bf16>,
}

/// Element types of vectors: `f32` and `bf16`.
pub trait FloatElement: Element + Default {
    #[doc(hidden)]
    fn free_list(books: &mut AllocStats) -> &mut FreeList<Self>;
}

impl FloatElement for f32 {
    fn free_list(books: &mut AllocStats) -> &mut FreeList<f32> {
        &mut books.floats
    }
}

impl FloatElement for bf16 {
    fn free_list(books: &mut AllocStats) -> &mut FreeList<bf16> {
        &mut books.bf16s
    }
}

impl Allocator {
    /// Allocates `count` zeros.
    pub fn zeros<T: FloatElement>(&self, class: AllocClass, count: usize) -> TrackedVec<T> {
        let mut storage = self.alloc(class, count);
        // A cached vector still has the values of its last use.
        storage.fill(T::default());
        storage
    }

    /// Allocates `count` elements with unspecified values.
    pub fn alloc<T: FloatElement>(&self, class: AllocClass, count: usize) -> TrackedVec<T> {
        let mut books = self.books();
        books.add(class, count * size_of::<T>());
        let spare = T::free_list(&mut books).0.get_mut(&(self.owner, class, count)).and_then(Vec::pop);
        // A vector without elements takes no memory from the system, so it is not counted.
        books.fresh_allocations += u64::from(spare.is_none() && count > 0);
        // The lock is released first, because zeroing a new vector takes long and the thread of the
        // collectives allocates, too.
        drop(books);
        TrackedVec { data: spare.unwrap_or_else(|| vec![T::default(); count]), class, memory: self.clone() }
    }

    /// Counts `bytes` that are stored elsewhere, until the returned value is dropped.
    pub fn track(&self, class: AllocClass, bytes: usize) -> Tracked {
        self.books().add(class, bytes);
        Tracked { class, bytes, memory: self.clone() }
    }

    /// Returns an allocator with the same accounts that keeps flat buffers in the memory of the GPU
    /// of `lane`.
    pub fn with_lane(&self, lane: &Arc<Compute>) -> Self {
        Self { lane: Some(Arc::clone(lane)), ..self.clone() }
    }

    /// Returns an allocator with the same accounts for the thread of the collectives.
    ///
    /// It does not reuse vectors of the thread that computes. The most vectors of one length that
    /// both need together would depend on time, and a later step could allocate.
    pub fn for_communication(&self) -> Self {
        Self { owner: CacheOwner::Communication, ..self.clone() }
    }

    /// Returns an allocator with the same accounts whose strategies record their work on a GPU.
    pub fn with_timeline(&self, timeline: Option<GpuTimeline>) -> Self {
        Self { timeline, ..self.clone() }
    }

    /// Returns the recorder of work on a GPU, if there is one.
    pub fn timeline(&self) -> Option<&GpuTimeline> {
        self.timeline.as_ref()
    }

    /// Returns the GPU stream for flat buffers; `None` if they are in host memory.
    pub fn lane(&self) -> Option<&Arc<Compute>> {
        self.lane.as_ref()
    }

    /// Returns the GPU that holds flat buffers, if there is one.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.lane.as_ref().map(|lane| lane.stream().gpu())
    }

    /// Returns the current and peak bytes of `class`.
    pub fn usage(&self, class: AllocClass) -> ClassUsage {
        self.books().usage[class as usize]
    }

    /// Returns the number of vectors that no cached vector could serve.
    pub fn fresh_allocations(&self) -> u64 {
        self.books().fresh_allocations
    }

    /// Resets the peaks to the bytes in use.
    pub fn reset_peaks(&self) {
        for usage in &mut self.books().usage {
            usage.peak = usage.current;
        }
    }

    /// Returns cached vectors to the system.
    pub fn release_cached(&self) {
        let mut books = self.books();
        books.floats.0.clear();
        books.bf16s.0.clear();
    }

    fn books(&self) -> std::sync::MutexGuard<'_, AllocStats> {
        self.lock_stats.lock().expect("nobody panics while holding it")
    }
}

impl AllocStats {
    fn add(&mut self, class: AllocClass, bytes: usize) {
        let usage = &mut self.usage[class as usize];
        usage.current += bytes;
        usage.peak = usage.peak.max(usage.current);
    }
}

/// Counted bytes that are stored elsewhere.
pub struct Tracked {
    class: AllocClass,
    bytes: usize,
    memory: Allocator,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.memory.books().usage[self.class as usize].current -= self.bytes;
    }
}

/// Vector in counted memory. Dereferences to a slice.
pub struct TrackedVec<T: FloatElement> {
    data: Vec<T>,
    class: AllocClass,
    memory: Allocator,
}

/// Vector of 32-bit floats.
pub type F32Vec = TrackedVec<f32>;

impl<T: FloatElement> TrackedVec<T> {
    /// Copies the vector in the same class.
    pub fn copy(&self) -> Self {
        let mut copy = self.memory.alloc(self.class, self.len());
        copy.copy_from_slice(self);
        copy
    }

    /// Returns the memory to the system at once, instead of caching it.
    pub fn free(mut self) {
        // An empty vector stays behind, which `drop` leaves out of the accounts and of the cache.
        let data = std::mem::take(&mut self.data);
        self.memory.books().usage[self.class as usize].current -= size_of_val(data.as_slice());
    }
}

impl<T: FloatElement> Deref for TrackedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data
    }
}

impl<T: FloatElement> DerefMut for TrackedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data
    }
}

impl<T: FloatElement> Drop for TrackedVec<T> {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        // `free` has taken the data, and has subtracted the bytes already.
        if data.is_empty() {
            return;
        }
        let mut books = self.memory.books();
        books.usage[self.class as usize].current -= size_of_val(data.as_slice());
        // The vector returns to the owner that asked for it, whichever thread drops it, so that its
        // next step finds it.
        T::free_list(&mut books).0.entry((self.memory.owner, self.class, data.len())).or_default().push(data);
    }
}

impl<T: FloatElement> fmt::Debug for TrackedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers of {:?}", self.len(), self.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_class_and_vectors_are_reused() {
        let memory = Allocator::default();
        let mut first = memory.zeros::<f32>(AllocClass::Weights, 100);
        first[99] = 7.0;
        let address = first.as_ptr();
        let second = memory.zeros::<f32>(AllocClass::Gradients, 50);
        assert_eq!(memory.usage(AllocClass::Weights), ClassUsage { current: 400, peak: 400 });
        drop((first, second));
        assert_eq!(memory.fresh_allocations(), 2);
        assert_eq!(memory.usage(AllocClass::Weights), ClassUsage { current: 0, peak: 400 });
        memory.reset_peaks();
        let activations = memory.zeros::<f32>(AllocClass::Activations, 100);
        assert_eq!((memory.fresh_allocations(), activations.as_ptr() == address), (3, false));
        assert_eq!(memory.usage(AllocClass::Activations), ClassUsage { current: 400, peak: 400 });
        assert_eq!(memory.usage(AllocClass::Weights), ClassUsage::default());
        let again = memory.zeros::<f32>(AllocClass::Weights, 100);
        assert_eq!((again.as_ptr(), again[99], memory.fresh_allocations()), (address, 0.0, 3));
        drop(again);
        memory.release_cached();
        let _after = memory.zeros::<f32>(AllocClass::Weights, 100);
        assert_eq!(memory.fresh_allocations(), 4);
    }
}
