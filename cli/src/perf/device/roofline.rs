//! Memory bandwidth of GPUs, measured in the same run.

use crate::perf::roofline::{Gpus, Roofline};
use unisono::Communicator;
use unisono::device::{Gpu, GpuError};
use unisono_bench_support::stats::median;

/// Measures on rank 0 while the others wait, and returns the result on every rank.
pub(super) fn measure(comm: &Communicator, gpu: &Gpu, gpus: usize) -> Result<Roofline, String> {
    let mut values = [0.0];
    if comm.rank() == 0 {
        values = [copy(gpu).map_err(|error| error.to_string())?];
    }
    comm.broadcast(&mut values, 0).map_err(|error| error.to_string())?;
    let gpus = Gpus { copy_gbs_gpu: values[0], gpus: gpus.min(comm.size()) };
    Ok(Roofline { gpus: Some(gpus), ..Roofline::default() })
}

/// GB/s, read plus written, of the driver's copies out of every cache.
fn copy(gpu: &Gpu) -> Result<f64, GpuError> {
    // On a GPU, 256 MiB leave every cache. The times of the software device mean nothing, so it
    // copies little.
    let count = if gpu.is_emulated() { 1 << 18 } else { 1 << 26 };
    let numbers: Vec<f32> = (0..count).map(|index| (index % 1021) as f32).collect();
    let (stream, source, mut target) = (gpu.stream()?, gpu.upload(&numbers)?, gpu.alloc::<f32>(count)?);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = stream.record()?;
        stream.copy(&mut target, &source)?;
        times.push(f64::from(begun.elapsed_ms(&stream.record()?)?));
    }
    Ok((2 * count * size_of::<f32>()) as f64 / median(times).unwrap_or_default().max(1e-6) / 1e6)
}

const ROUNDS: usize = 9;
