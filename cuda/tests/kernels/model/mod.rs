//! The kernels for training on the emulator, against the host's functions and formulas in f64.

mod attention;
mod gradients;
mod modules;
mod products;
mod races;

use crate::emulator::Device;
use crate::material::Random;
use std::ops::Range;
use unisono_reducers::Element;

/// The device with these kernels of `kernels`.
fn device(name: &str, kernels: &[&str]) -> Option<Device> {
    let sources: Vec<String> = kernels.iter().map(|kernel| format!("kernels/model_{kernel}.cu")).collect();
    Device::new(name, &sources.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Numbers between -1 and 1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| (2.0 * random.fraction() - 1.0) as f32).collect()
}

/// A copy of `values` in device memory, `skew` elements behind a multiple of 16.
struct Memory<'a> {
    device: &'a Device,
    start: *mut u8,
    /// In bytes.
    skew: usize,
    count: usize,
}

impl<'a> Memory<'a> {
    fn of<T: Element>(device: &'a Device, skew: usize, values: &[T]) -> Self {
        let start = device.allocate((skew + values.len()).max(1) * size_of::<T>());
        let memory = Self { device, start, skew: skew * size_of::<T>(), count: values.len() };
        // SAFETY: just allocated, for this many.
        unsafe { std::slice::from_raw_parts_mut(memory.at::<T>(), values.len()) }.copy_from_slice(values);
        memory
    }

    /// The first element.
    fn at<T>(&self) -> *mut T {
        // SAFETY: within the allocation.
        unsafe { self.start.add(self.skew).cast() }
    }

    /// Reads the content, and checks that nothing was written beside it.
    fn read<T: Element>(self) -> Vec<T> {
        // SAFETY: as many as were put there; no kernel runs.
        let values = unsafe { std::slice::from_raw_parts(self.at::<T>(), self.count) }.to_vec();
        assert_eq!(self.device.free(self.start), Ok(()));
        values
    }
}

/// Returns true if numbers are those of `expected`, up to `tolerance` of them or of 1.
fn near(found: &[f32], expected: &[f64], tolerance: f64, context: &str) {
    assert_eq!(found.len(), expected.len(), "{context}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= tolerance * expected.abs().max(1.0),
            "{context}, [{index}]: {found}, not {expected}"
        );
    }
}

/// The bits of numbers.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// In f64.
fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// The rows of `values`, each of `width`.
fn row(values: &[f64], width: usize, row: usize) -> &[f64] {
    let range: Range<usize> = row * width..(row + 1) * width;
    &values[range]
}
