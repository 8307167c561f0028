//! Copies and reductions of memory, beside the driver's own copy in the same run. Bandwidths count
//! bytes read plus bytes written.

use crate::rows::{median, print};
use crate::{Bench, BenchResult};
use serde_json::json;
use unisono_cuda::device::{Buffer, GpuError, LaunchDims, ReduceCopy, Stream};
use unisono_reducers::{DType, ReduceKind};

/// Copies by the kernel `reduce_copy_float_sum` on ever more blocks, of buffers that fit into the
/// L2 cache and of such that do not.
pub(crate) fn copies(bench: &Bench) -> BenchResult {
    for bytes in bench.sized(vec![256 << 10], vec![256 << 20, 8 << 20]) {
        let mut memory = Memory::new(bench, 2, bytes)?;
        let row = |case: &str, blocks: Option<u32>, gbs: f64, driver: f64| {
            let share = gbs / driver;
            print(&json!({
                "experiment": "copies", "case": case, "blocks": blocks, "bytes": bytes, "gbs": gbs,
                "share_of_driver": share,
            }));
        };
        let driver = memory.gbs(2, Memory::copy)?;
        row("the driver's copy", None, driver, driver);
        for blocks in BLOCKS {
            let gbs = memory.gbs(2, |memory, stream| memory.reduce(stream, blocks, 1, DType::F32))?;
            row("copy by blocks", Some(blocks), gbs, driver);
        }
    }
    Ok(())
}

/// Sums of several sources on all multiprocessors, and of two sources of narrow types.
pub(crate) fn reductions(bench: &Bench) -> BenchResult {
    let bytes = bench.sized(256 << 10, 128 << 20);
    let mut memory = Memory::new(bench, SOURCES_MAX + 1, bytes)?;
    let driver = memory.gbs(2, Memory::copy)?;
    let multiprocessors = bench.gpu.multiprocessors()?;
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        for blocks in bench.sized(vec![2], vec![multiprocessors, 2 * multiprocessors]) {
            for sources in SOURCES {
                let passes = sources + 1;
                let gbs =
                    memory.gbs(passes, |memory, stream| memory.reduce(stream, blocks, sources, dtype))?;
                print(&json!({
                    "experiment": "reductions", "type": dtype.name(), "sources": sources, "blocks": blocks,
                    "bytes": bytes, "gbs": gbs, "share_of_driver": gbs / driver,
                }));
            }
        }
    }
    Ok(())
}

/// Buffers to copy between.
struct Memory {
    stream: Stream,
    buffers: Vec<Buffer<f32>>,
    threads: u32,
    samples: usize,
}

impl Memory {
    fn new(bench: &Bench, buffers: usize, bytes: usize) -> BenchResult<Self> {
        let count = bytes / size_of::<f32>();
        // Zeros can be faster than what real programs have.
        let numbers: Vec<f32> =
            (0..count).map(|index: usize| (index.wrapping_mul(2_654_435_761) >> 8) as u16 as f32).collect();
        let stream = bench.gpu.stream()?;
        let first = bench.gpu.upload(&numbers)?;
        let mut allocated = vec![first];
        for _ in 1..buffers {
            let mut next = bench.gpu.alloc(count)?;
            stream.copy(&mut next, &allocated[0])?;
            allocated.push(next);
        }
        let (threads, samples) = (bench.sized(32, 512), bench.sized(1, 9));
        Ok(Self { stream, buffers: allocated, threads, samples })
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
        let (targets, sources) = self.buffers.split_at_mut(1);
        stream.copy(&mut targets[0], &sources[0])
    }

    /// The first buffer becomes the sum of those behind it.
    fn reduce(&self, stream: &Stream, blocks: u32, sources: usize, dtype: DType) -> Result<(), GpuError> {
        let kernel = stream.gpu().kernel(&ReduceCopy::kernel(dtype, ReduceKind::Sum))?;
        let addresses: Vec<_> =
            self.buffers[1..=sources].iter().map(|buffer| buffer.address() as *const u8).collect();
        let count = self.bytes() / dtype.size();
        let arguments = ReduceCopy::new(&[self.buffers[0].address() as *mut u8], &addresses, count);
        let shape = LaunchDims { blocks, threads: self.threads, cooperative: false };
        // SAFETY: all buffers have the same length, and are told that the stream uses them.
        unsafe { kernel.launch(stream, shape, &arguments)? };
        self.buffers[..=sources].iter().for_each(|buffer| buffer.record_stream(stream));
        Ok(())
    }
}

const BLOCKS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 132, 264];
const SOURCES: [usize; 6] = [1, 2, 3, 4, 6, SOURCES_MAX];
const SOURCES_MAX: usize = 8;
