//! Copies and reductions of memory, beside the driver's own copy in the same run. Bandwidths count
//! bytes read plus bytes written.

use crate::table::{Table, median};
use crate::{Bench, BenchResult};
use unisono_cuda::device::{Buffer, GpuError, LaunchDims, ReduceCopy, Stream};
use unisono_cuda::{DType, ReduceKind};

/// Copies by the kernel `reduce_copy_float_sum` on ever more blocks.
pub(crate) fn copies(bench: &Bench) -> BenchResult<Table> {
    let mut table =
        Table::new("Copies, GB/s by bytes read plus written", &["GB/s", "share of the driver's copy"]);
    let mut memory = Memory::new(bench, 2)?;
    let driver = memory.gbs(2, Memory::copy)?;
    table.row(format!("the driver's, {} MiB", memory.bytes() >> 20), [driver, 1.0]);
    for blocks in BLOCKS {
        let gbs = memory.gbs(2, |memory, stream| memory.reduce(stream, blocks, 1))?;
        table.row(format!("{blocks} blocks"), [gbs, gbs / driver]);
    }
    Ok(table)
}

/// Sums of several sources on all multiprocessors.
pub(crate) fn reductions(bench: &Bench) -> BenchResult<Table> {
    let mut table =
        Table::new("float32 sums, GB/s by bytes read plus written", &["GB/s", "share of the driver's copy"]);
    let mut memory = Memory::new(bench, SOURCES_MAX + 1)?;
    let driver = memory.gbs(2, Memory::copy)?;
    let blocks = bench.sized(2, 2 * bench.gpu.multiprocessors()?);
    for sources in [1, 2, 4, SOURCES_MAX] {
        let gbs = memory.gbs(sources + 1, |memory, stream| memory.reduce(stream, blocks, sources))?;
        table.row(format!("{sources} sources, {blocks} blocks"), [gbs, gbs / driver]);
    }
    Ok(table)
}

/// Buffers to copy between.
struct Memory {
    stream: Stream,
    buffers: Vec<Buffer<f32>>,
    threads: u32,
    samples: usize,
}

impl Memory {
    fn new(bench: &Bench, buffers: usize) -> BenchResult<Self> {
        let count = bench.sized(64 << 10, 64 << 20);
        // Zeros can be faster than what real programs have.
        let numbers: Vec<f32> =
            (0..count).map(|at: usize| (at.wrapping_mul(2_654_435_761) >> 8) as u16 as f32).collect();
        let buffers: Result<Vec<_>, _> = (0..buffers).map(|_| bench.gpu.upload(&numbers)).collect();
        let (threads, samples) = (bench.sized(32, 512), bench.sized(1, 9));
        Ok(Self { stream: bench.gpu.stream()?, buffers: buffers?, threads, samples })
    }

    fn bytes(&self) -> usize {
        self.buffers[0].len() * size_of::<f32>()
    }

    /// The median rate of some samples; `passes` times the bytes of a buffer move in each.
    fn gbs(
        &mut self,
        passes: usize,
        enqueue: impl Fn(&mut Self, &Stream) -> Result<(), GpuError>,
    ) -> BenchResult<f64> {
        let stream = self.stream.clone();
        enqueue(self, &stream)?;
        let mut times = Vec::new();
        for _ in 0..self.samples {
            let begun = stream.record()?;
            enqueue(self, &stream)?;
            let ended = stream.record()?;
            times.push(f64::from(begun.elapsed_ms(&ended)?));
        }
        Ok((passes * self.bytes()) as f64 / median(times) / 1e6)
    }

    /// The first buffer becomes the second, by the driver.
    fn copy(&mut self, stream: &Stream) -> Result<(), GpuError> {
        let (to, from) = self.buffers.split_at_mut(1);
        stream.copy(&mut to[0], &from[0])
    }

    /// The first buffer becomes the sum of those behind it.
    fn reduce(&self, stream: &Stream, blocks: u32, sources: usize) -> Result<(), GpuError> {
        let kernel = stream.gpu().kernel(&ReduceCopy::kernel(DType::F32, ReduceKind::Sum))?;
        let from: Vec<_> =
            self.buffers[1..=sources].iter().map(|buffer| buffer.address() as *const u8).collect();
        let arguments =
            ReduceCopy::new(&[self.buffers[0].address() as *mut u8], &from, self.buffers[0].len());
        let shape = LaunchDims { blocks, threads: self.threads, cooperative: false };
        // SAFETY: all buffers have the same length, and are told that the stream uses them.
        unsafe { kernel.launch(stream, shape, &arguments)? };
        self.buffers[..=sources].iter().for_each(|buffer| buffer.record_stream(stream));
        Ok(())
    }
}

const BLOCKS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const SOURCES_MAX: usize = 8;
