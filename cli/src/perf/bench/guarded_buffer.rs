//! Buffers that detect writes outside of their bounds.

use crate::perf::args::Arguments;
use crate::perf::room::filled;
use std::ops::{Deref, DerefMut};
use unisono::{Communicator, Element, SymmetricBuffer};

/// A page-aligned buffer between two guard bands that nothing may write to.
pub(super) struct GuardedBuffer<T> {
    elements: Elements<T>,
    begin: usize,
    length: usize,
}

/// Ordinary memory, or memory that peers can access.
enum Elements<T> {
    Owned(Vec<T>),
    Symmetric(SymmetricBuffer<T>),
}

impl<T: Element> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Elements::Owned(values) => values,
            Elements::Symmetric(buffer) => buffer,
        }
    }
}

impl<T: Element> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Elements::Owned(values) => values,
            Elements::Symmetric(buffer) => buffer,
        }
    }
}

impl<T: Element> GuardedBuffer<T> {
    /// `length` elements, in such memory as the arguments ask for.
    pub(super) fn new(arguments: &Arguments, comm: &Communicator, length: usize) -> Result<Self, String> {
        let band = GUARD_BYTES / size_of::<T>();
        let room = length + 3 * band;
        let elements = match arguments.register {
            2 => Elements::Symmetric(comm.alloc_symmetric(room).map_err(|error| error.to_string())?),
            _ => Elements::Owned(filled(comm, T::default(), room)?),
        };
        // At most a band; elements divide pages, so it is never impossible.
        let begin = band + elements.as_ptr().align_offset(GUARD_BYTES).min(band);
        let mut buffer = Self { elements, begin, length };
        buffer.elements[..begin].fill(guard_value());
        buffer.elements[begin + length..].fill(guard_value());
        Ok(buffer)
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn as_slice(&self) -> &[T] {
        &self.elements[self.begin..self.begin + self.length]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.elements[self.begin..self.begin + self.length]
    }

    /// Sets every element to a value that no result has.
    pub(super) fn poison(&mut self) {
        self.as_mut_slice().fill(guard_value());
    }

    /// Returns the number of overwritten guard elements.
    pub(super) fn count_overwritten(&self) -> u64 {
        let bands = self.elements[..self.begin].iter().chain(&self.elements[self.begin + self.length..]);
        bands.filter(|&&element| element != guard_value()).count() as u64
    }
}

/// Value of the guards. Patterns do not contain it: 96 is not exact in eight bits, and other types
/// hit it by chance only.
pub(super) fn guard_value<T: Element>() -> T {
    T::from_f64(96.0)
}

const GUARD_BYTES: usize = 4096;
