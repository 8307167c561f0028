//! `cargo bench -p unisono-reducers`: the reducers, in cache and out of it, beside the limit of the
//! machine.
//!
//! Throughput counts every byte read and written. Each case first proves its result. The rows
//! `limit` are the shortest loop that does the same: loads, additions, non-temporal stores.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use unisono_reducers::{
    DType, Element, F8E4M3, F8E5M2, PostOp, ReduceKind, Source, Store, Target, as_bytes, bf16, copy_into,
    copy_to, f16, reduce_into, reduce_to,
};

/// Longer than any cache, together with one source.
const LONG: usize = 24 << 20;
/// The L2 cache holds two sources and a target of this size.
const SHORT: usize = 96 << 10;
const SOURCES: [usize; 3] = [2, 4, 8];

/// Memory that begins on a page, but for `skew` bytes.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize, skew: usize) -> Self {
        let memory = vec![0xa5; bytes + PAGE + skew];
        let start = memory.as_ptr().align_offset(PAGE) + skew;
        Self { memory, start, bytes }
    }

    /// Elements 0 and 1, of which sums are exact in every type.
    fn holding<T: Element>(bytes: usize, index: usize) -> Self {
        // In one cache, operands that begin equally far in a page would wait for one another.
        let skew = if bytes < LONG { 9 * 64 * (index + 1) } else { 0 };
        let mut buffer = Self::new(bytes, skew);
        let elements: Vec<T> = (0..bytes / size_of::<T>())
            .map(|position| T::from_f64(f64::from(u8::from((position >> index).is_multiple_of(2)))))
            .collect();
        buffer.bytes_mut().copy_from_slice(as_bytes(&elements));
        buffer
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    fn target(&mut self) -> Target<'_> {
        self.bytes_mut().into()
    }

    fn source(&self) -> Source<'_> {
        self.memory[self.start..self.start + self.bytes].into()
    }

    /// Panics unless it holds the sum of `sources` buffers as made by [`Self::holding`].
    fn expect_sum_of<T: Element>(&mut self, sources: usize) {
        let ones =
            |position: usize| (0..sources).filter(|index| (position >> index).is_multiple_of(2)).count();
        for (position, found) in self.bytes_mut().chunks_exact(size_of::<T>()).enumerate() {
            assert_eq!(
                found,
                as_bytes(&[T::from_f64(ones(position) as f64)]),
                "element {position} of {}",
                T::DTYPE
            );
        }
    }
}

const PAGE: usize = 4096;

fn sums(criterion: &mut Criterion) {
    for (place, bytes) in [("out of cache", LONG), ("in cache", SHORT)] {
        for sources in SOURCES {
            let bytes = if bytes == SHORT { SHORT * 3 / (sources + 1) / PAGE * PAGE } else { bytes };
            let group = &mut group(criterion, &format!("sum of {sources}, {place}"));
            group.throughput(Throughput::Bytes((bytes * (sources + 1)) as u64));
            limit(group, bytes, sources);
            sum::<f32>(group, bytes, sources);
            sum::<f64>(group, bytes, sources);
            sum::<i32>(group, bytes, sources);
            sum::<bf16>(group, bytes, sources);
            sum::<f16>(group, bytes, sources);
            sum::<F8E4M3>(group, bytes, sources);
            sum::<F8E5M2>(group, bytes, sources);
        }
    }
}

/// Proves what `call` leaves in `state`, then measures it.
fn proven<S>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    state: &mut S,
    mut call: impl FnMut(&mut S),
    proof: impl Fn(&mut S),
) {
    call(state);
    proof(state);
    group.bench_function(id, |bencher| bencher.iter(|| call(state)));
}

/// The store that suits the place; for f32 out of cache the other one, too.
fn sum<T: Element>(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize, sources: usize) {
    let stores: &[Store] = match (bytes >= LONG, T::DTYPE) {
        (true, DType::F32) => &[Store::Stream, Store::Cached],
        (true, _) => &[Store::Stream],
        (false, _) => &[Store::Cached],
    };
    let buffers: Vec<Buffer> = (0..sources).map(|index| Buffer::holding::<T>(bytes, index)).collect();
    let operands: Vec<Source<'_>> = buffers.iter().map(Buffer::source).collect();
    for &store in stores {
        let mut result = Buffer::new(bytes, 0);
        let id = BenchmarkId::new(T::DTYPE.to_string(), format!("{store:?}"));
        let call = |result: &mut Buffer| {
            reduce_to(
                store,
                T::DTYPE,
                ReduceKind::Sum,
                PostOp::Identity,
                result.target(),
                black_box(&operands),
            );
        };
        proven(group, id, &mut result, call, |result| result.expect_sum_of::<T>(sources));
    }
}

/// A sum as two calls for two targets, and as one.
fn two_targets(criterion: &mut Criterion) {
    let group = &mut group(criterion, "sum of 2 for a window and a caller, out of cache");
    group.throughput(Throughput::Bytes(4 * LONG as u64));
    let buffers = [0, 1].map(|index| Buffer::holding::<f32>(LONG, index));
    let operands = [buffers[0].source(), buffers[1].source()];
    let mut targets = [Buffer::new(LONG, 0), Buffer::new(LONG, 0)];
    let proof =
        |targets: &mut [Buffer; 2]| targets.iter_mut().for_each(|target| target.expect_sum_of::<f32>(2));
    let apart = |[window, output]: &mut [Buffer; 2]| {
        let operands = black_box(&operands);
        reduce_to(Store::Cached, DType::F32, ReduceKind::Sum, PostOp::Identity, window.target(), operands);
        copy_to(Store::Stream, output.target(), window.source());
    };
    proven(group, BenchmarkId::from_parameter("reduce_to, copy_to"), &mut targets, apart, proof);
    let together = |[window, output]: &mut [Buffer; 2]| {
        let targets = &mut [(Store::Cached, window.target()), (Store::Stream, output.target())];
        reduce_into(DType::F32, ReduceKind::Sum, PostOp::Identity, targets, black_box(&operands));
    };
    proven(group, BenchmarkId::from_parameter("reduce_into"), &mut targets, together, proof);
}

fn copies(criterion: &mut Criterion) {
    for (place, bytes) in [("out of cache", LONG), ("in cache", SHORT)] {
        let group = &mut group(criterion, &format!("copy, {place}"));
        let source = Buffer::holding::<f32>(bytes, 0);
        let mut targets = [1, 2].map(|index| Buffer::new(bytes, 9 * 64 * index));
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        for store in [Store::Stream, Store::Cached] {
            let call = |target: &mut Buffer| copy_to(store, target.target(), black_box(source.source()));
            let proof = |target: &mut Buffer| target.expect_sum_of::<f32>(1);
            proven(group, BenchmarkId::from_parameter(format!("{store:?}")), &mut targets[0], call, proof);
        }
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        let copy_to_both = |[window, output]: &mut [Buffer; 2]| {
            let targets = &mut [(Store::Cached, window.target()), (Store::Stream, output.target())];
            copy_into(targets, black_box(source.source()));
        };
        let proof =
            |targets: &mut [Buffer; 2]| targets.iter_mut().for_each(|target| target.expect_sum_of::<f32>(1));
        proven(group, BenchmarkId::from_parameter("Cached and Stream"), &mut targets, copy_to_both, proof);
    }
}

fn small(criterion: &mut Criterion) {
    let group = &mut group(criterion, "sum of 2, small");
    for bytes in [8, 64, 512, 4096] {
        let buffers = [0, 1].map(|index| Buffer::holding::<f32>(bytes, index));
        let operands = [buffers[0].source(), buffers[1].source()];
        let mut result = Buffer::new(bytes, 0);
        let call = |result: &mut Buffer| {
            let target = result.target();
            reduce_to(
                Store::Cached,
                black_box(DType::F32),
                ReduceKind::Sum,
                PostOp::Identity,
                target,
                &operands,
            );
        };
        let id = BenchmarkId::from_parameter(bytes);
        proven(group, id, &mut result, call, |result| result.expect_sum_of::<f32>(2));
    }
}

/// f32 added by the shortest loop there is.
#[cfg(target_arch = "x86_64")]
fn limit(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize, sources: usize) {
    let buffers: Vec<Buffer> = (0..sources).map(|index| Buffer::holding::<f32>(bytes, index)).collect();
    let operands: Vec<&[u8]> =
        buffers.iter().map(|buffer| &buffer.memory[buffer.start..buffer.start + bytes]).collect();
    let mut result = Buffer::new(bytes, 0);
    if is_x86_feature_detected!("avx") {
        let call = |result: &mut Buffer| match sources {
            2 => limit::add::<2>(result, black_box(&operands)),
            4 => limit::add::<4>(result, black_box(&operands)),
            _ => limit::add::<8>(result, black_box(&operands)),
        };
        let id = BenchmarkId::from_parameter("limit");
        proven(group, id, &mut result, call, |result| result.expect_sum_of::<f32>(sources));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn limit(_: &mut BenchmarkGroup<'_, WallTime>, _: usize, _: usize) {}

#[cfg(target_arch = "x86_64")]
mod limit {
    use super::{Buffer, LONG};
    use std::arch::x86_64::*;

    /// result = the sum of the operands. AVX must be there.
    pub(super) fn add<const N: usize>(result: &mut Buffer, operands: &[&[u8]]) {
        let operands: [&[u8]; N] = operands.try_into().expect("so many operands");
        let bytes = result.bytes_mut();
        assert!(
            bytes.len().is_multiple_of(128) && operands.iter().all(|operand| operand.len() == bytes.len())
        );
        // SAFETY: pointers of slices of one length, a multiple of a step, page-aligned the first.
        unsafe {
            match bytes.len() >= LONG {
                true => stream(bytes.as_mut_ptr(), operands.map(<[u8]>::as_ptr), bytes.len()),
                false => store(bytes.as_mut_ptr(), operands.map(<[u8]>::as_ptr), bytes.len()),
            }
        }
    }

    #[target_feature(enable = "avx")]
    unsafe fn stream<const N: usize>(target: *mut u8, sources: [*const u8; N], bytes: usize) {
        for offset in (0..bytes).step_by(32) {
            // SAFETY: the caller's word.
            unsafe { _mm256_stream_ps(target.add(offset).cast(), sum(&sources, offset)) };
        }
        _mm_sfence();
    }

    #[target_feature(enable = "avx")]
    unsafe fn store<const N: usize>(target: *mut u8, sources: [*const u8; N], bytes: usize) {
        for line in (0..bytes).step_by(128) {
            for offset in [line, line + 32, line + 64, line + 96] {
                // SAFETY: the caller's word.
                unsafe { _mm256_storeu_ps(target.add(offset).cast(), sum(&sources, offset)) };
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx")]
    unsafe fn sum<const N: usize>(sources: &[*const u8; N], offset: usize) -> __m256 {
        // SAFETY: the caller's word.
        let load = |source: *const u8| unsafe { _mm256_loadu_ps(source.add(offset).cast()) };
        sources[1..].iter().fold(load(sources[0]), |sum, &source| _mm256_add_ps(sum, load(source)))
    }
}

/// Short rounds, so that all of it takes less than a minute.
fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .sample_size(15);
    group
}

criterion_group!(benches, small, copies, two_targets, sums);
criterion_main!(benches);
