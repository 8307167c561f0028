//! Cost of a launch: plain and cooperative, enqueued one by one, and replayed from a graph.

use crate::rows::{median, print};
use crate::{Bench, BenchResult};
use serde_json::json;
use std::time::Instant;
use unisono_cuda::device::{Buffer, GpuError, LaunchDims, ReduceCopy, Stream};
use unisono_reducers::{DType, ReduceKind};

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let (stream, buffers) = (bench.gpu.stream()?, [bench.gpu.alloc(1)?, bench.gpu.alloc(1)?]);
    let count = bench.sized(20, 1_000);
    let threads = bench.sized(32, 512);
    for blocks in [1, 8, 64] {
        for cooperative in [false, true] {
            let word = if cooperative { "cooperative" } else { "plain" };
            let shape = LaunchDims { blocks, threads, cooperative };
            let launch_all = |stream: &Stream| (0..count).try_for_each(|_| launch(stream, &buffers, shape));
            row(word, blocks, figures(&stream, count, launch_all)?);
            let graph = stream.capture(launch_all)?;
            let replay = |stream: &Stream| graph.launch(stream);
            row(&format!("{word}, in a graph of all"), blocks, figures(&stream, count, replay)?);
        }
    }
    Ok(())
}

fn row(case: &str, blocks: u32, [us, gpu_us]: [f64; 2]) {
    print(&json!({"experiment": "launches", "case": case, "blocks": blocks, "us": us, "gpu_us": gpu_us}));
}

fn launch(stream: &Stream, buffers: &[Buffer<f32>; 2], shape: LaunchDims) -> Result<(), GpuError> {
    let kernel = stream.gpu().kernel(&ReduceCopy::kernel(DType::F32, ReduceKind::Sum))?;
    let arguments =
        ReduceCopy::new(&[buffers[0].address() as *mut u8], &[buffers[1].address() as *const u8], 1);
    // SAFETY: both have one element, and are told that the stream uses them.
    unsafe { kernel.launch(stream, shape, &arguments)? };
    buffers.iter().for_each(|buffer| buffer.record_stream(stream));
    Ok(())
}

/// Microseconds of each of `count` launches: to enqueue it, and between two events.
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
