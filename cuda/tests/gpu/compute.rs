//! Modules and optimizers by safe launches: results against formulas.

use unisono_cuda::device::GpuError;
use unisono_cuda::device::compute::{
    Activation, AdamStep, AttentionShape, Compute, Indices, MatrixView, MatrixViewMut, Norm,
};
use unisono_reducers::{Element, bf16};

/// Numbers between -1 and 1, different for each seed.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let number = |index: u32| (index + 77 * seed).wrapping_mul(2_654_435_761) as f32 / 2_147_483_648.0 - 1.0;
    (1..=count as u32).map(number).collect()
}

fn bits<T: Element>(values: &[T]) -> Vec<u8> {
    unisono_reducers::as_bytes(values).to_vec()
}

#[test]
fn products_are_those_of_the_library_and_of_the_kernel() {
    let Some(gpu) = crate::gpu() else { return };
    let library = Compute::new(gpu.stream().unwrap()).unwrap();
    let kernel = Compute::without_cublas(gpu.stream().unwrap()).unwrap();
    // The emulator has cuBLAS. A machine with a GPU need not have it, and the kernel serves there.
    let expected = if gpu.is_emulated() { "cuBLAS" } else { library.matmul_backend() };
    assert_eq!((library.matmul_backend(), kernel.matmul_backend()), (expected, "a kernel"));
    for compute in [&library, &kernel] {
        for (turn, extents) in [[1, 1, 1], [5, 7, 3], [3, 70, 20], [65, 2, 33]].into_iter().enumerate() {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                product(compute, extents, transposed, [0.0, 1.0, 0.5][turn % 3]);
            }
        }
    }
}

fn product(compute: &Compute, [rows, columns, inner]: [usize; 3], transposed: [bool; 2], beta: f32) {
    let (gpu, stream) = (compute.stream().gpu(), compute.stream());
    let (first, second, original) =
        (numbers(1, rows * inner), numbers(2, inner * columns), numbers(3, rows * columns));
    let mut buffer = gpu.upload(&original).unwrap();
    let (left, right) = (gpu.upload(&first).unwrap(), gpu.upload(&second).unwrap());
    let (left, right) = (left.view(..), right.view(..));
    let panel = |view, rows, columns, is_transposed| match is_transposed {
        true => MatrixView::new(view, columns, rows).unwrap().t(),
        false => MatrixView::new(view, rows, columns).unwrap(),
    };
    let (left, right) =
        (panel(&left, rows, inner, transposed[0]), panel(&right, inner, columns, transposed[1]));
    let target = MatrixViewMut::new(buffer.view_mut(..), rows, columns).unwrap();
    compute.matmul(target, beta, 0.75, left, right).unwrap();
    let place = |row, column, rows, columns, is_transposed| {
        if is_transposed { column * rows + row } else { row * columns + column }
    };
    for (index, found) in buffer.to_vec(stream).unwrap().into_iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let term = |k| {
            first[place(row, k, rows, inner, transposed[0])]
                * second[place(k, column, inner, columns, transposed[1])]
        };
        let expected = 0.75 * (0..inner).map(term).sum::<f32>() + beta * original[index];
        let backend = compute.matmul_backend();
        assert!(
            (found - expected).abs() < 1e-5,
            "{rows} × {columns} by {backend}, {transposed:?}: {found}, not {expected}"
        );
    }
}

#[test]
fn gradients_and_steps_are_those_of_the_host() {
    let Some(gpu) = crate::gpu() else { return };
    let compute = Compute::new(gpu.stream().unwrap()).unwrap();
    let (stream, values) = (compute.stream(), numbers(4, 1003));
    let mut buffer = gpu.upload(&values).unwrap();
    let squares = compute.square_sums(&[buffer.view(..)]).unwrap();
    let (found, mut naive) = (squares.to_vec(stream).unwrap()[0], 0.0);
    unisono_reducers::block_square_sums(&values, 64, |part| naive += part);
    assert!((found - naive).abs() <= 1e-6 * naive, "{found}, not {naive}");
    compute.scale_and_clip(buffer.view_mut(..), squares.view(..), 0.5, 3.0).unwrap();
    let mut clipped = values.clone();
    unisono_reducers::scale_and_clip(&mut clipped, 0.5, 0.5 * found.sqrt(), 3.0);
    assert!(bits(&buffer.to_vec(stream).unwrap()) == bits(&clipped));
    conversions(&compute, &values);
    strides(&compute, &values);
    adamw(&compute, &values);
    muon(&compute, &values);
}

fn conversions(compute: &Compute, values: &[f32]) {
    let (gpu, stream) = (compute.stream().gpu(), compute.stream());
    let (wide, mut narrow) = (gpu.upload(values).unwrap(), gpu.alloc::<bf16>(values.len()).unwrap());
    compute.narrow(narrow.view_mut(..), wide.view(..)).unwrap();
    let mut halves = vec![bf16::ZERO; values.len()];
    unisono_reducers::narrow(&mut halves, values);
    assert!(narrow.to_vec(stream).unwrap() == halves);
    let mut back = gpu.alloc::<f32>(values.len()).unwrap();
    compute.widen(back.view_mut(..), narrow.view(..)).unwrap();
    let mut rounded = vec![0.0; values.len()];
    unisono_reducers::widen(&mut rounded, &halves);
    assert!(back.to_vec(stream).unwrap() == rounded);
}

fn strides(compute: &Compute, values: &[f32]) {
    let (gpu, stream) = (compute.stream().gpu(), compute.stream());
    let (array, mut dense) = (gpu.upload(values).unwrap(), gpu.alloc::<f32>(30 * 20).unwrap());
    let (shape, strides) = ([20, 30], [1, 33]);
    compute.pack(dense.view_mut(..), array.view(..), &shape, &strides).unwrap();
    let mut packed = vec![0.0; 600];
    unisono_reducers::pack(&mut packed, values, &shape, &strides);
    assert!(dense.to_vec(stream).unwrap() == packed);
    let mut back = gpu.alloc::<f32>(values.len()).unwrap();
    compute.unpack(back.view_mut(..), dense.view(..), &shape, &strides).unwrap();
    let mut unpacked = vec![0.0; values.len()];
    unisono_reducers::unpack(&mut unpacked, &packed, &shape, &strides);
    assert!(back.to_vec(stream).unwrap() == unpacked);
    let beyond = compute.pack(dense.view_mut(..), array.view(..), &shape, &[1, 60]).unwrap_err();
    assert_eq!(beyond, GpuError::LengthMismatch { found: 1003, wanted: 19 + 29 * 60 + 1 });
}

fn adamw(compute: &Compute, values: &[f32]) {
    let gpu = compute.stream().gpu();
    let buffer = || gpu.upload(values).unwrap();
    let (mut weights, gradient, mut first, mut second) =
        (buffer(), buffer(), buffer(), gpu.alloc::<f32>(values.len()).unwrap());
    let step = AdamStep { factor: 0.5, betas: (0.9, 0.99), rate: 0.1, root: 0.1, epsilon: 1e-8, keep: 0.9 };
    let moments = [first.view_mut(..), second.view_mut(..)];
    compute.adamw(step, weights.view_mut(..), gradient.view(..), moments).unwrap();
    let expected = values.iter().map(|&weight| {
        let slope = weight * 0.5;
        let first = weight + (slope - weight) * (1.0 - 0.9);
        weight * 0.9 - 0.1 * first / ((slope * slope * (1.0 - 0.99)).sqrt() / 0.1 + 1e-8)
    });
    assert!(bits(&weights.to_vec(compute.stream()).unwrap()) == bits(&expected.collect::<Vec<_>>()));
}

/// Directions of Muon, and a step along one of them.
fn muon(compute: &Compute, values: &[f32]) {
    let (gpu, stream) = (compute.stream().gpu(), compute.stream());
    let (gradient, mut weights) = (gpu.upload(values).unwrap(), gpu.upload(values).unwrap());
    let (mut moment, mut direction) = (gpu.upload(values).unwrap(), gpu.alloc::<f32>(values.len()).unwrap());
    compute.muon_momentum(gradient.view(..), moment.view_mut(..), direction.view_mut(..), 0.5, 0.9).unwrap();
    compute.add(weights.view_mut(..), direction.view(..), -0.1, 0.99).unwrap();
    let moments: Vec<f32> = values.iter().map(|value| 0.9 * value + value * 0.5).collect();
    let next = |(value, moment): (&f32, &f32)| value * 0.99 - 0.1 * (value * 0.5 + 0.9 * moment);
    let expected: Vec<f32> = values.iter().zip(&moments).map(next).collect();
    assert!(bits(&moment.to_vec(stream).unwrap()) == bits(&moments));
    assert!(bits(&weights.to_vec(stream).unwrap()) == bits(&expected));
}

#[test]
fn memory_is_copied_cleared_and_scaled_in_order() {
    let Some(gpu) = crate::gpu() else { return };
    let compute = Compute::new(gpu.stream().unwrap()).unwrap();
    let (source, mut target) = (gpu.upload(&numbers(5, 100)).unwrap(), gpu.upload(&numbers(6, 50)).unwrap());
    compute.copy(target.view_mut(..), source.view(20..70)).unwrap();
    compute.zero(target.view_mut(10..20)).unwrap();
    compute.scale(target.view_mut(..), 2.0).unwrap();
    let mut expected: Vec<f32> = numbers(5, 100)[20..70].iter().map(|value| 2.0 * value).collect();
    expected[10..20].fill(0.0);
    assert_eq!(target.to_vec(compute.stream()).unwrap(), expected);
}

#[test]
fn compute_mismatched_lengths_are_refused() {
    let Some(gpu) = crate::gpu() else { return };
    let compute = Compute::new(gpu.stream().unwrap()).unwrap();
    let (short, mut long) = (gpu.alloc::<f32>(6).unwrap(), gpu.alloc::<f32>(7).unwrap());
    let length = |found, wanted| Err(GpuError::LengthMismatch { found, wanted });
    assert_eq!(compute.activation(Activation::GeluExact, long.view_mut(..), short.view(..)), length(6, 7));
    assert_eq!(compute.add_rows(long.view_mut(..), short.view(..)), length(6, 7));
    assert_eq!(compute.swiglu(long.view_mut(..), short.view(..), 7), length(6, 14));
    let (moments, gain) = (gpu.alloc::<f32>(3).unwrap(), gpu.alloc::<f32>(2).unwrap());
    let inputs = [short.view(..), moments.view(..), gain.view(..)];
    assert_eq!(compute.normalize_backward(Norm::Rms, inputs, long.view_mut(..)), length(7, 6));
    let (depth, sequence) = (1, 2);
    let heads = AttentionShape { count: 1, depth, sequence };
    let sums = gpu.alloc::<f32>(1).unwrap();
    let refused = compute.attention(heads, short.view(..), long.view_mut(..2), { sums }.view_mut(..));
    assert_eq!(refused, length(1, 2));
    assert!(MatrixView::new(&short.view(..), 2, 4).is_err());
    assert_eq!(Indices::new(compute.stream(), &[1, 9, 2], 3, Some(9)).map(|indices| indices.len()), Ok(3));
    let refused = Indices::new(compute.stream(), &[1, 3], 3, None).err();
    assert_eq!(refused, Some(GpuError::IndexOutOfRange { index: 3, below: 3 }));
    let Some(other) = crate::other_gpu() else { return };
    let elsewhere = other.alloc::<f32>(6).unwrap();
    let refused = compute.copy(long.view_mut(..6), elsewhere.view(..)).unwrap_err();
    assert!(matches!(refused, GpuError::WrongGpu { owner: 1, user: 0, .. }), "{refused}");
}
