//! A read of page-locked memory by a kernel: what a launch takes longer if its only load goes over
//! PCIe.

use crate::rows::{median, print};
use crate::{Bench, BenchResult};
use serde_json::json;
use unisono_cuda::device::{LaunchDims, ReduceCopy, Stream};
use unisono_reducers::{DType, ReduceKind};

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let (stream, target) = (bench.gpu.stream()?, bench.gpu.alloc::<f32>(4)?);
    let (device, pinned) = (bench.gpu.alloc::<f32>(4)?, bench.gpu.pin::<f32>(4)?);
    let count = bench.sized(10, 200);
    let mut times = [Vec::new(), Vec::new()];
    // In turn, so that a change of the clock meets both.
    for _ in 0..SAMPLES {
        for (times, source) in times.iter_mut().zip([device.address(), pinned.address()]) {
            times.push(micros(&stream, target.address(), source, count)?);
        }
    }
    stream.synchronize()?;
    let [device, pinned] = times.map(median);
    let row = |case: &str, us: f64| print(&json!({"experiment": "page-locked", "case": case, "us": us}));
    row("read of page-locked memory, beyond one of the GPU's", pinned - device);
    print(&json!({"figure": "launch with a read of the GPU's memory", "us": device}));
    print(&json!({"figure": "launch with a read of page-locked memory", "us": pinned}));
    Ok(())
}

/// Microseconds of each of `count` launches that copy 4 bytes.
fn micros(stream: &Stream, target: u64, source: u64, count: usize) -> BenchResult<f64> {
    let kernel = stream.gpu().kernel(&ReduceCopy::kernel(DType::F32, ReduceKind::Sum))?;
    let arguments = ReduceCopy::new(&[target as *mut u8], &[source as *const u8], 1);
    let shape = LaunchDims { blocks: 1, threads: 32, cooperative: false };
    let begun = stream.record()?;
    for _ in 0..count {
        // SAFETY: both have an element, and live until the caller has waited for the stream.
        unsafe { kernel.launch(stream, shape, &arguments)? };
    }
    let ended = stream.record()?;
    Ok(f64::from(begun.elapsed_ms(&ended)?) * 1e3 / count as f64)
}

const SAMPLES: usize = 5;
