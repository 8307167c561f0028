//! `cargo bench -p unisono-reducers --bench gradients`: operations on gradients, compared with a
//! copy of as many bytes by the C library.
//!
//! Throughput counts every byte read and written. Rows of one matrix within a wider one, and its
//! transpose, are packed into a contiguous bucket and unpacked again.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use unisono_reducers::{average, bf16, block_square_sums, narrow, pack, scale_and_clip, unpack, widen};

/// Rows and columns of a matrix of 16 MiB: longer than the nearest caches.
const ROWS: usize = 2048;
const COLUMNS: usize = 2048;
/// Elements from row to row where the matrix is a part of a wider one.
const WIDER: usize = COLUMNS + 512;
const COUNT: usize = ROWS * COLUMNS;

/// Measures `call` as something that reads and writes so many bytes.
fn measure(criterion: &mut Criterion, id: BenchmarkId, bytes: usize, mut call: impl FnMut()) {
    let mut group = criterion.benchmark_group("gradients");
    group
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .sample_size(15)
        .throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(id, |bencher| bencher.iter(&mut call));
    group.finish();
}

fn packing(criterion: &mut Criterion) {
    let wide: Vec<f32> = (0..ROWS * WIDER).map(|index| index as f32).collect();
    let mut bucket = vec![0.0f32; COUNT];
    let (shape, bytes) = ([ROWS, COLUMNS], 8 * COUNT);
    let id = |what: &str| BenchmarkId::new(what, "16 MiB");
    measure(criterion, id("copy"), bytes, || bucket.copy_from_slice(black_box(&wide[..COUNT])));
    for (what, strides) in [("rows", [WIDER, 1]), ("transposed", [1, ROWS])] {
        let name = format!("pack {what}");
        measure(criterion, id(&name), bytes, || pack(&mut bucket, black_box(&wide), &shape, &strides));
        let mut back = vec![0.0f32; wide.len()];
        let name = format!("unpack {what}");
        measure(criterion, id(&name), bytes, || unpack(&mut back, black_box(&bucket), &shape, &strides));
        assert_eq!(back[strides[0]], wide[strides[0]], "there and back again");
    }
}

fn passes(criterion: &mut Criterion) {
    let mut values = vec![1.0f32; COUNT];
    let mut halves = vec![bf16::ONE; COUNT];
    let id = |what: &str| BenchmarkId::new(what, "16 MiB");
    measure(criterion, id("average"), 8 * COUNT, || average(black_box(&mut values), 1));
    measure(criterion, id("scale and clip"), 8 * COUNT, || scale_and_clip(&mut values, 1.0, 1.0, 2.0));
    measure(criterion, id("squares"), 4 * COUNT, || {
        let mut sum = 0.0;
        block_square_sums(black_box(&values), 32, |part| sum += part);
        assert_eq!(sum, COUNT as f64);
    });
    measure(criterion, id("narrow"), 6 * COUNT, || narrow(&mut halves, black_box(&values)));
    measure(criterion, id("widen"), 6 * COUNT, || widen(&mut values, black_box(&halves)));
}

criterion_group!(benches, packing, passes);
criterion_main!(benches);
