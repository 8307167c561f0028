//! Storage that is counted: who holds how many bytes, now and at most.
//!
//! All long vectors of the trainer come from one [`Memory`] per rank. Given back, they are kept for the next
//! that asks for as many elements, so that a steady-state step allocates nothing.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use unisono::{Element, bf16};
use unisono_cuda::device::Gpu;
use unisono_cuda::device::compute::Compute;

/// What storage is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Parameters that modules compute with.
    Weights,
    /// Gradients.
    Gradients,
    /// Full-precision copies of the weights, and moments.
    Optimiser,
    /// What forward keeps for backward, and what flows between modules.
    Activations,
    /// What is kept in files rather than in memory.
    Offloaded,
    /// Room for communication and conversion.
    Buffers,
}

impl Class {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Weights, Self::Gradients, Self::Optimiser, Self::Activations, Self::Offloaded, Self::Buffers];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Optimiser => "optimiser",
            Self::Activations => "activations",
            Self::Offloaded => "offloaded",
            Self::Buffers => "buffers",
        }
    }
}

/// Bytes of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use now.
    pub now: usize,
    /// Most ever in use at once, since the last [`Memory::forget_peaks`].
    pub peak: usize,
}

/// Where one rank's storage comes from; clones share it.
#[derive(Clone, Default)]
pub struct Memory {
    books: Arc<Mutex<Books>>,
    lane: Option<Arc<Compute>>,
}

/// What nobody uses, by number of elements.
type Shelf<T> = HashMap<usize, Vec<Vec<T>>>;

/// The books of one [`Memory`]; opaque.
#[derive(Default)]
pub struct Books {
    usage: [Usage; Class::ALL.len()],
    floats: Shelf<f32>,
    halves: Shelf<bf16>,
}

/// What storage may hold: `f32` and `bf16`.
pub trait Number: Element + Default {
    #[doc(hidden)]
    fn shelf(books: &mut Books) -> &mut HashMap<usize, Vec<Vec<Self>>>;
}

impl Number for f32 {
    fn shelf(books: &mut Books) -> &mut Shelf<f32> {
        &mut books.floats
    }
}

impl Number for bf16 {
    fn shelf(books: &mut Books) -> &mut Shelf<bf16> {
        &mut books.halves
    }
}

impl Memory {
    /// `count` zeros.
    pub fn zeros<T: Number>(&self, class: Class, count: usize) -> Storage<T> {
        let mut storage = self.take(class, count);
        storage.fill(T::default());
        storage
    }

    /// `count` numbers that mean nothing yet.
    pub fn take<T: Number>(&self, class: Class, count: usize) -> Storage<T> {
        let mut books = self.books();
        books.add(class, count * size_of::<T>());
        let spare = T::shelf(&mut books).get_mut(&count).and_then(Vec::pop);
        drop(books);
        Storage { data: spare.unwrap_or_else(|| vec![T::default(); count]), class, memory: self.clone() }
    }

    /// Counts `bytes` that are kept elsewhere, for as long as what comes back lives.
    pub fn note(&self, class: Class, bytes: usize) -> Noted {
        self.books().add(class, bytes);
        Noted { class, bytes, memory: self.clone() }
    }

    /// The same books for flat numbers ([`crate::flat::Numbers`]) in memory of the GPU on which `lane` works.
    pub fn on(&self, lane: &Arc<Compute>) -> Self {
        Self { books: Arc::clone(&self.books), lane: Some(Arc::clone(lane)) }
    }

    /// What works on flat numbers, if they lie in memory of a GPU.
    pub fn lane(&self) -> Option<&Arc<Compute>> {
        self.lane.as_ref()
    }

    /// The GPU in whose memory flat numbers lie, if one has them.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.lane.as_ref().map(|lane| lane.stream().gpu())
    }

    /// Bytes of `class`, now and at most.
    pub fn usage(&self, class: Class) -> Usage {
        self.books().usage[class as usize]
    }

    /// Lets the peaks start again from what is in use now.
    pub fn forget_peaks(&self) {
        for usage in &mut self.books().usage {
            usage.peak = usage.now;
        }
    }

    /// Gives storage that nobody uses back to the system.
    pub fn trim(&self) {
        let mut books = self.books();
        books.floats.clear();
        books.halves.clear();
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().expect("nobody panics while holding it")
    }
}

impl Books {
    fn add(&mut self, class: Class, bytes: usize) {
        let usage = &mut self.usage[class as usize];
        usage.now += bytes;
        usage.peak = usage.peak.max(usage.now);
    }
}

/// Bytes that count and are kept elsewhere.
pub struct Noted {
    class: Class,
    bytes: usize,
    memory: Memory,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.memory.books().usage[self.class as usize].now -= self.bytes;
    }
}

/// Numbers in counted storage; a slice like any other.
pub struct Storage<T: Number> {
    data: Vec<T>,
    class: Class,
    memory: Memory,
}

/// The usual numbers.
pub type Floats = Storage<f32>;

impl<T: Number> Storage<T> {
    /// A copy in the same class.
    pub fn copy(&self) -> Self {
        let mut copy = self.memory.take(self.class, self.len());
        copy.copy_from_slice(self);
        copy
    }

    /// Gives it back to the system at once, rather than keep it for the next that asks.
    pub fn free(mut self) {
        let data = std::mem::take(&mut self.data);
        self.memory.books().usage[self.class as usize].now -= size_of_val(data.as_slice());
    }
}

impl<T: Number> Deref for Storage<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data
    }
}

impl<T: Number> DerefMut for Storage<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data
    }
}

impl<T: Number> Drop for Storage<T> {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        if data.is_empty() {
            return;
        }
        let mut books = self.memory.books();
        books.usage[self.class as usize].now -= size_of_val(data.as_slice());
        T::shelf(&mut books).entry(data.len()).or_default().push(data);
    }
}

impl<T: Number> fmt::Debug for Storage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers of {:?}", self.len(), self.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_class_and_storage_comes_back() {
        let memory = Memory::default();
        let mut one = memory.zeros::<f32>(Class::Weights, 100);
        one[99] = 7.0;
        let at = one.as_ptr();
        let two = memory.zeros::<f32>(Class::Gradients, 50);
        assert_eq!(memory.usage(Class::Weights), Usage { now: 400, peak: 400 });
        drop((one, two));
        assert_eq!(memory.usage(Class::Weights), Usage { now: 0, peak: 400 });
        memory.forget_peaks();
        let again = memory.zeros::<f32>(Class::Activations, 100);
        assert_eq!((again.as_ptr(), again[99]), (at, 0.0));
        assert_eq!(memory.usage(Class::Activations), Usage { now: 400, peak: 400 });
        assert_eq!(memory.usage(Class::Weights), Usage::default());
    }
}
