//! Test data: random elements, and memory with guards around it.

use crate::{DType, Element, Source, as_bytes, as_bytes_mut};

/// Numbers that look random (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 to 1.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Any bits, ordinary numbers and the corners of the type, mixed.
    pub(super) fn elements<T: Element>(&mut self, count: usize) -> Vec<T> {
        let corners =
            [0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, f64::MAX, 448.0, 6e-8];
        let element = |_| match self.next() % 4 {
            0 => T::from_f64(corners[self.next() as usize % corners.len()]),
            1 => bits::<T>(self.next()),
            _ => T::from_f64((self.next() as i32) as f64 / f64::from(1 << 28)),
        };
        (0..count).map(element).collect()
    }
}

/// The element of these bits.
pub(super) fn bits<T: Element>(bits: u64) -> T {
    let mut element = [T::default()];
    let word = u128::from(bits) | u128::from(bits.rotate_left(20)) << 64;
    as_bytes_mut(&mut element).copy_from_slice(&word.to_le_bytes()[..size_of::<T>()]);
    element[0]
}

/// Equal to the bit, or both NaN.
pub(super) fn same<T: Element>(left: T, right: T) -> bool {
    let any_nan = left.to_f64().is_nan() && right.to_f64().is_nan();
    as_bytes(&[left]) == as_bytes(&[right]) || any_nan || nan_beside(left, right) || same_truth(left, right)
}

/// Returns whether truth values are equal. A single operand keeps its byte.
fn same_truth<T: Element>(left: T, right: T) -> bool {
    T::DTYPE == DType::Bool && left == right
}

/// Returns whether complex numbers are equal, or both NaN in a part.
fn nan_beside<T: Element>(left: T, right: T) -> bool {
    let parts = |element: T| -> Vec<f64> {
        let bytes = as_bytes(std::slice::from_ref(&element)).to_vec();
        match T::DTYPE {
            DType::C64 => bytes.as_chunks().0.iter().map(|&part| f32::from_ne_bytes(part).into()).collect(),
            DType::C128 => bytes.as_chunks().0.iter().map(|&part| f64::from_ne_bytes(part)).collect(),
            _ => Vec::new(),
        }
    };
    let (left, right) = (parts(left), parts(right));
    let equal =
        |(left, right): (&f64, &f64)| left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan();
    !left.is_empty() && left.iter().zip(&right).all(equal)
}

/// Memory that begins `skew` bytes behind a multiple of 64 and has guards on both sides.
pub(super) struct Guarded {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

const GUARD: usize = 64;

impl Guarded {
    /// Guarded memory of `bytes`.
    pub(super) fn new(skew: usize, bytes: usize) -> Self {
        let memory = vec![0xa5; bytes + skew + 3 * GUARD];
        let start = memory.as_ptr().align_offset(GUARD) + GUARD + skew;
        Self { memory, start, bytes }
    }

    /// Guarded memory that holds `elements`.
    pub(super) fn holding<T: Element>(skew: usize, elements: &[T]) -> Self {
        let mut guarded = Self::new(skew, size_of_val(elements));
        guarded.inner().copy_from_slice(as_bytes(elements));
        guarded
    }

    pub(super) fn inner(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    pub(super) fn source(&self) -> Source<'_> {
        Source::from(&self.memory[self.start..self.start + self.bytes])
    }

    /// Compares with the beginning of `expected`, and looks at the guards.
    pub(super) fn expect<T: Element>(mut self, expected: &[T], context: &dyn Fn() -> String) {
        let mut found = vec![T::default(); self.bytes / size_of::<T>()];
        as_bytes_mut(&mut found).copy_from_slice(self.inner());
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            assert!(same(found, expected), "{}, [{index}]: {found:?}, not {expected:?}", context());
        }
        self.inner().fill(0xa5);
        assert!(self.memory.iter().all(|&byte| byte == 0xa5), "{}: wrote outside", context());
    }
}
