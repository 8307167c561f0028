//! Kernels for gradients and for strided arrays.

use super::{Memory, bits, device, numbers};
use crate::emulator::Device;
use crate::material::{Random, same};
use unisono_cuda::device::model::{AdamW, Clip, Convert, MuonMomentum, SquareSums, Strided};
use unisono_reducers::{Element, bf16};

/// Below and above what a block takes at once, with tails.
const LENGTHS: [usize; 6] = [0, 1, 7, 64, 1003, 5000];

#[test]
fn gradients_are_those_of_the_host() {
    let Some(device) = device("model-gradients.so", &["gradients", "optimizer"]) else { return };
    for (turn, length) in LENGTHS.into_iter().enumerate() {
        norms_and_clipping(&device, turn % 3, length);
        conversions(&device, turn % 3, length);
        adamw(&device, turn % 3, length);
        muon(&device, turn % 3, length);
    }
    large_values_do_not_overflow(&device);
    every_bfloat16_is_widened_and_narrowed(&device);
}

/// The sum of squares, in device memory.
fn squares<'a>(device: &'a Device, values: &Memory<'_>) -> Memory<'a> {
    let (partial, total) = (Memory::of(device, 0, &[0.0f64; 3]), Memory::of(device, 0, &[0.0f64]));
    let arguments = SquareSums {
        values: values.at(),
        count: values.count as u64,
        partial: partial.at(),
        total: total.at(),
        partials: 3,
    };
    device.run("squares", &arguments, 3, 32).unwrap();
    device.run("total", &arguments, 1, 32).unwrap();
    partial.read::<f64>();
    total
}

fn host_squares(values: &[f32]) -> f64 {
    let mut sum = 0.0;
    unisono_reducers::block_square_sums(values, 64, |part| sum += part);
    sum
}

fn norms_and_clipping(device: &Device, skew: usize, length: usize) {
    let expected = numbers(length as u64, length);
    let values = Memory::of(device, skew, &expected);
    let (total, again) = (squares(device, &values), squares(device, &values).read::<f64>()[0]);
    // SAFETY: no kernel runs.
    let found = unsafe { *total.at::<f64>() };
    assert_eq!(found.to_bits(), again.to_bits(), "one order");
    let naive = host_squares(&expected);
    assert!((found - naive).abs() <= 1e-6 * naive, "{found}, not {naive}");
    for longest in [0.0, 0.3, 1e30] {
        let values = Memory::of(device, skew, &expected);
        let arguments = Clip {
            values: values.at(),
            count: length as u64,
            squares: total.at(),
            longest,
            scale: 0.25,
            unused: 0,
        };
        device.run("scale_and_clip", &arguments, 2, 32).unwrap();
        let mut expected = expected.clone();
        unisono_reducers::scale_and_clip(&mut expected, 0.25, found.sqrt() * 0.25, longest);
        assert!(bits(&values.read()) == bits(&expected), "{length} no longer than {longest}");
    }
    values.read::<f32>();
    total.read::<f64>();
}

fn large_values_do_not_overflow(device: &Device) {
    let values = Memory::of(device, 0, &[1e19f32; 1000]);
    let norm = squares(device, &values).read::<f64>()[0].sqrt() / (1e19 * 1000f64.sqrt());
    assert!((norm - 1.0).abs() < 1e-6, "{norm}");
    values.read::<f32>();
}

fn convert(device: &Device, kernel: &str, wide: &Memory<'_>, narrow: &Memory<'_>) {
    let arguments = Convert { wide: wide.at(), narrow: narrow.at(), count: wide.count as u64 };
    device.run(kernel, &arguments, 2, 32).unwrap();
}

fn conversions(device: &Device, skew: usize, length: usize) {
    let values: Vec<f32> = Random(length as u64).elements(length);
    let (wide, narrow) =
        (Memory::of(device, skew, &values), Memory::of(device, skew, &vec![bf16::ZERO; length]));
    convert(device, "narrow", &wide, &narrow);
    let mut expected = vec![bf16::ZERO; length];
    unisono_reducers::narrow(&mut expected, &values);
    let found: Vec<bf16> = narrow.read();
    assert!(found.iter().zip(&expected).all(|(found, expected)| same(*found, *expected)), "{length}");
    wide.read::<f32>();
}

fn every_bfloat16_is_widened_and_narrowed(device: &Device) {
    let bfloats: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let (wide, narrow) =
        (Memory::of(device, 0, &vec![0.0f32; bfloats.len()]), Memory::of(device, 0, &bfloats));
    convert(device, "widen", &wide, &narrow);
    let back = Memory::of(device, 0, &vec![bf16::ZERO; bfloats.len()]);
    convert(device, "narrow", &wide, &back);
    let mut expected = vec![0.0f32; bfloats.len()];
    unisono_reducers::widen(&mut expected, &bfloats);
    assert!(bits(&wide.read()) == bits(&expected));
    narrow.read::<bf16>();
    assert!(back.read::<bf16>().into_iter().zip(bfloats).all(|(found, expected)| same(found, expected)));
}

fn adamw(device: &Device, skew: usize, length: usize) {
    let seeds = [1, 2, 3, 4];
    let [weights, gradient, first, second] = seeds.map(|seed| numbers(seed, length));
    let second: Vec<f32> = second.iter().map(|moment| moment.abs()).collect();
    let memories = [&weights, &gradient, &first, &second].map(|values| Memory::of(device, skew, values));
    let arguments = AdamW {
        weights: memories[0].at(),
        gradient: memories[1].at(),
        first: memories[2].at(),
        second: memories[3].at(),
        count: length as u64,
        factor: 0.7,
        less: [1.0 - 0.9, 1.0 - 0.999],
        beta: 0.999,
        rate: 1e-2,
        root: 0.3,
        epsilon: 1e-8,
        keep: 0.99,
    };
    device.run("adamw", &arguments, 2, 32).unwrap();
    let AdamW { factor, less, beta, rate, root, epsilon, keep, .. } = arguments;
    let step = |index: usize| {
        let slope = gradient[index] * factor;
        let first = first[index] + (slope - first[index]) * less[0];
        let second = second[index] * beta + slope * slope * less[1];
        [
            weights[index] * keep - rate * first / (second.sqrt() / root + epsilon),
            slope / factor,
            first,
            second,
        ]
    };
    let [weights, slopes, first, second] = memories.map(Memory::read::<f32>);
    assert!(slopes == gradient);
    for index in 0..length {
        let [weight, _, first_moment, second_moment] = step(index);
        assert_eq!(
            bits(&[weights[index], first[index], second[index]]),
            bits(&[weight, first_moment, second_moment]),
            "{index} of {length}"
        );
    }
}

fn muon(device: &Device, skew: usize, length: usize) {
    let (gradient, moment) = (numbers(5, length), numbers(6, length));
    let memories = [&gradient, &moment, &moment].map(|values| Memory::of(device, skew, values));
    let arguments = MuonMomentum {
        gradient: memories[0].at(),
        moment: memories[1].at(),
        direction: memories[2].at(),
        count: length as u64,
        factor: 0.7,
        momentum: 0.95,
    };
    device.run("muon_momentum", &arguments, 2, 32).unwrap();
    let [_, moments, directions] = memories.map(Memory::read::<f32>);
    for index in 0..length {
        let slope = gradient[index] * 0.7;
        let moment = 0.95 * moment[index] + slope;
        let expected = [moment, slope + 0.95 * moment];
        assert_eq!(bits(&[moments[index], directions[index]]), bits(&expected), "{index} of {length}");
    }
}

#[test]
fn arrays_of_any_strides_are_packed_as_on_the_host() {
    let Some(device) = device("model-pack.so", &["pack"]) else { return };
    for (shape, strides) in [
        (&[][..], &[][..]),
        (&[0, 3], &[3, 1]),
        (&[40], &[1]),
        (&[37, 21], &[64, 1]),
        (&[37, 21], &[1, 37]),
        (&[5, 4, 3], &[1, 15, 5]),
        (&[2, 3, 4, 5], &[60, 20, 5, 1]),
        (&[1, 6, 1], &[99, 2, 5]),
    ] {
        both_ways::<u8>(&device, shape, strides);
        both_ways::<bf16>(&device, shape, strides);
        both_ways::<u32>(&device, shape, strides);
        both_ways::<f64>(&device, shape, strides);
    }
}

fn both_ways<T: Element>(device: &Device, shape: &[usize], strides: &[usize]) {
    let count = shape.iter().product::<usize>();
    let last: usize =
        shape.iter().zip(strides).map(|(extent, stride)| extent.saturating_sub(1) * stride).sum();
    let array: Vec<T> =
        Random(3).elements::<u8>((last + 1) * size_of::<T>()).chunks(size_of::<T>()).map(of).collect();
    let (there, dense) = (Memory::of(device, 1, &array), Memory::of(device, 1, &vec![T::default(); count]));
    let mut arguments = Strided {
        dense: dense.at(),
        array: there.at(),
        count: count as u64,
        extents: [0; Strided::DIMENSIONS_MAX],
        strides: [0; Strided::DIMENSIONS_MAX],
        dimensions: shape.len() as u32,
        unused: 0,
    };
    for (dimension, (&extent, &stride)) in shape.iter().zip(strides).enumerate() {
        (arguments.extents[dimension], arguments.strides[dimension]) = (extent as u64, stride as u64);
    }
    let mut expected = vec![T::default(); count];
    unisono_reducers::pack(&mut expected, &array, shape, strides);
    device.run(&format!("pack_{}", size_of::<T>()), &arguments, 2, 32).unwrap();
    let back = Memory::of(device, 1, &vec![T::default(); array.len()]);
    let arguments = Strided { array: back.at(), ..arguments };
    device.run(&format!("unpack_{}", size_of::<T>()), &arguments, 2, 32).unwrap();
    let mut unpacked = vec![T::default(); array.len()];
    unisono_reducers::unpack(&mut unpacked, &expected, shape, strides);
    let equal = |found: Vec<T>, expected: &[T]| {
        unisono_reducers::as_bytes(&found) == unisono_reducers::as_bytes(expected)
    };
    assert!(equal(dense.read(), &expected), "{shape:?} {strides:?}");
    assert!(equal(back.read(), &unpacked), "{shape:?} {strides:?}");
    there.read::<T>();
}

/// An element of these bytes.
fn of<T: Element>(bytes: &[u8]) -> T {
    let mut element = [T::default()];
    unisono_reducers::as_bytes_mut(&mut element).copy_from_slice(bytes);
    element[0]
}
