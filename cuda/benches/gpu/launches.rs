//! Cost of a launch: enqueued one by one, and replayed from a graph.

use crate::table::{Table, median};
use crate::{Bench, BenchResult};
use std::time::Instant;
use unisono_cuda::device::{Buffer, GpuError, LaunchDims, ReduceCopy, Stream};
use unisono_cuda::{DType, ReduceKind};

pub(crate) fn run(bench: &Bench) -> BenchResult<Table> {
    let mut table = Table::new("Launches of a copy of 4 bytes", &["µs to enqueue", "µs each, on the GPU"]);
    let (stream, buffers) = (bench.gpu.stream()?, [bench.gpu.alloc(1)?, bench.gpu.alloc(1)?]);
    let count = bench.sized(20, 2_000);
    let one_by_one = |stream: &Stream| (0..count).try_for_each(|_| launch(stream, &buffers));
    table.row("one by one", figures(&stream, count, one_by_one)?);
    let graph = stream.capture(|stream| (0..count).try_for_each(|_| launch(stream, &buffers)))?;
    table.row("replayed from a graph of all", figures(&stream, count, |stream| graph.launch(stream))?);
    Ok(table)
}

fn launch(stream: &Stream, buffers: &[Buffer<f32>; 2]) -> Result<(), GpuError> {
    let kernel = stream.gpu().kernel(&ReduceCopy::kernel(DType::F32, ReduceKind::Sum))?;
    let arguments =
        ReduceCopy::new(&[buffers[0].address() as *mut u8], &[buffers[1].address() as *const u8], 1);
    // SAFETY: both have one element, and are told that the stream uses them.
    unsafe { kernel.launch(stream, LaunchDims { blocks: 1, threads: 32, cooperative: false }, &arguments)? };
    buffers.iter().for_each(|buffer| buffer.record_stream(stream));
    Ok(())
}

fn figures(
    stream: &Stream,
    count: usize,
    enqueue: impl Fn(&Stream) -> Result<(), GpuError>,
) -> BenchResult<[f64; 2]> {
    enqueue(stream)?;
    let (mut host, mut device) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        stream.synchronize()?;
        let (begun, first) = (Instant::now(), stream.record()?);
        enqueue(stream)?;
        let (elapsed, last) = (begun.elapsed(), stream.record()?);
        host.push(elapsed.as_secs_f64() * 1e6 / count as f64);
        device.push(f64::from(first.elapsed_ms(&last)?) * 1e3 / count as f64);
    }
    Ok([median(host), median(device)])
}

const SAMPLES: usize = 5;
