//! Buffers that notice writes beside them.

use crate::perf::args::Arguments;
use std::ops::{Deref, DerefMut};
use unisono::{Communicator, Element, Lent, Result};

/// A buffer that begins at a page, between two bands that nobody may write to.
pub(super) struct Guarded<T> {
    all: Elements<T>,
    begin: usize,
    length: usize,
}

/// Ordinary memory, or such as peers reach.
enum Elements<T> {
    Own(Vec<T>),
    Lent(Lent<T>),
}

impl<T: Element> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Elements::Own(own) => own,
            Elements::Lent(lent) => lent,
        }
    }
}

impl<T: Element> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Elements::Own(own) => own,
            Elements::Lent(lent) => lent,
        }
    }
}

impl<T: Element> Guarded<T> {
    /// `length` elements, in such memory as the arguments ask for.
    pub(super) fn new(arguments: &Arguments, comm: &Communicator, length: usize) -> Result<Self> {
        let band = BAND_BYTES / size_of::<T>();
        let room = length + 3 * band;
        let all = match arguments.register {
            2 => Elements::Lent(comm.alloc(room)?),
            _ => Elements::Own(vec![T::default(); room]),
        };
        // At most a band; elements divide pages, so it is never impossible.
        let begin = band + all.as_ptr().align_offset(BAND_BYTES).min(band);
        let mut buffer = Self { all, begin, length };
        buffer.all[..begin].fill(guard());
        buffer.all[begin + length..].fill(guard());
        Ok(buffer)
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn view(&self) -> &[T] {
        &self.all[self.begin..self.begin + self.length]
    }

    pub(super) fn inner(&mut self) -> &mut [T] {
        &mut self.all[self.begin..self.begin + self.length]
    }

    /// Makes every element one that no result is.
    pub(super) fn poison(&mut self) {
        self.inner().fill(guard());
    }

    /// Elements of the bands that somebody wrote to.
    pub(super) fn touched(&self) -> u64 {
        let bands = self.all[..self.begin].iter().chain(&self.all[self.begin + self.length..]);
        bands.filter(|&&element| element != guard()).count() as u64
    }
}

/// No pattern has it: 96 is beyond what eight bits hold exactly, and others use it at most by chance.
pub(super) fn guard<T: Element>() -> T {
    T::from_f64(96.0)
}

const BAND_BYTES: usize = 4096;
