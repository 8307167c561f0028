//! Cost of a launch by its kind and attributes, enqueued one by one, and replayed from a graph.

use crate::rows::{median, print};
use crate::{Bench, BenchResult};
use serde_json::json;
use std::time::Instant;
use unisono_cuda::device::{Buffer, Gpu, GpuError, Kernel, LaunchDims, ReduceCopy, Stream};
use unisono_reducers::{DType, ReduceKind};

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let (stream, buffers) = (bench.gpu.stream()?, [bench.gpu.alloc(1)?, bench.gpu.alloc(1)?]);
    let count = bench.sized(20, 1_000);
    let threads = bench.sized(32, 512);
    let kinds = kinds(&bench.gpu)?;
    for blocks in [1, 8, 64] {
        for Kind { case, kernel, cooperative, is_replayed } in &kinds {
            let shape = LaunchDims { blocks, threads, cooperative: *cooperative };
            let launch_all =
                |stream: &Stream| (0..count).try_for_each(|_| launch(stream, kernel, &buffers, shape));
            row(case, blocks, figures(&stream, count, launch_all)?);
            if *is_replayed {
                let graph = stream.capture(launch_all)?;
                let replay = |stream: &Stream| graph.launch(stream);
                row(&format!("{case}, in a graph of all"), blocks, figures(&stream, count, replay)?);
            }
        }
    }
    Ok(())
}

/// A kind of launch.
struct Kind {
    case: &'static str,
    kernel: Kernel,
    cooperative: bool,
    /// True if a graph replays such launches, too.
    is_replayed: bool,
}

/// Returns the kinds of launches that the GPU has. Those with attributes need capability 9.0.
fn kinds(gpu: &Gpu) -> BenchResult<Vec<Kind>> {
    let kernel = gpu.kernel(&ReduceCopy::kernel(DType::F32, ReduceKind::Sum))?;
    let kind = |case, cooperative| Kind { case, kernel: kernel.clone(), cooperative, is_replayed: true };
    let mut kinds = vec![kind("plain", false), kind("cooperative", true)];
    if gpu.capability()? >= (9, 0) {
        let attributed = |case, kernel| Kind { case, kernel, cooperative: false, is_replayed: false };
        kinds.push(attributed("remote domain", kernel.clone().in_remote_domain()?));
        kinds.push(attributed("programmatic", kernel.clone().with_programmatic_serialization()?));
    }
    Ok(kinds)
}

fn row(case: &str, blocks: u32, [us, gpu_us]: [f64; 2]) {
    print(&json!({"experiment": "launches", "case": case, "blocks": blocks, "us": us, "gpu_us": gpu_us}));
}

fn launch(
    stream: &Stream,
    kernel: &Kernel,
    buffers: &[Buffer<f32>; 2],
    shape: LaunchDims,
) -> Result<(), GpuError> {
    let arguments =
        ReduceCopy::new(&[buffers[0].address() as *mut u8], &[buffers[1].address() as *const u8], 1);
    // SAFETY: both have one element, and are told that the stream uses them. Launches that run at
    // the same time write the same value.
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
