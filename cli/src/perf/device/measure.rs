//! Measures ranks on GPUs.

use super::Device;
use super::bench::Bench;
use super::paths::Paths;
use super::roofline;
use crate::perf::args::Arguments;
use crate::perf::bench::Row;
use crate::perf::op_case::OpCase;
use crate::perf::report::Report;
use crate::perf::room;
use unisono::device::{DeviceCommunicator, Gpu, gpus};
use unisono::{Communicator, DType, F8E4M3, F8E5M2, bf16, f16};

impl Device {
    /// Returns the GPU of `rank`. Ranks are distributed round-robin over the GPUs of the host.
    fn open(self, rank: usize) -> Result<Gpu, String> {
        #[cfg(feature = "emulator")]
        if self == Device::Software {
            unisono_cuda::emulator::install().map_err(|error| error.to_string())?;
        }
        let gpus = gpus().map_err(|error| error.to_string())?;
        Gpu::open(rank % gpus.max(1)).map_err(|error| error.to_string())
    }
}

/// Measures every requested type, operation, root and size on one rank.
pub(in crate::perf) fn measure(arguments: &Arguments, comm: &Communicator) -> Result<u8, String> {
    let opened = arguments.device.open(comm.rank());
    let gpu = check_all_opened(comm, opened)?;
    let roofline = match arguments.wants_roofline() {
        true => Some(roofline::measure(comm, &gpu, gpus().map_err(|error| error.to_string())?)?),
        false => None,
    };
    let on_gpu = comm.to_device(&gpu).map_err(|error| error.to_string())?;
    let paths = Paths::collect(comm, &on_gpu).map_err(|error| error.to_string())?;
    let mut report = Report::new(arguments, comm, roofline, Some(paths.name()));
    let speaks = comm.rank() == 0;
    if speaks {
        paths.print(arguments.jsonl)?;
    }
    if comm.config().gpu.peer_to_peer {
        paths.check_one_gpu()?;
    }
    if speaks && !arguments.jsonl {
        let meaning = if gpu.is_emulated() { ": not a GPU, times mean nothing" } else { "" };
        println!("# device {} is {}{meaning}", gpu.ordinal(), gpu.name());
    }
    report.head();
    for (dtype, test, size) in arguments.cases(comm.size()) {
        room::require_room(comm, test, dtype.size(), size)?;
        report.add(row(arguments, comm, &on_gpu, dtype, test, size)?)?;
    }
    report.finish()
}

/// Returns the GPU if every rank has one. Otherwise fails on all ranks, because the others would
/// wait for a rank without a GPU.
fn check_all_opened(comm: &Communicator, opened: Result<Gpu, String>) -> Result<Gpu, String> {
    let mut failed = [u8::from(opened.is_err())];
    comm.all_reduce(&mut failed, unisono::Max).map_err(|error| error.to_string())?;
    let gpu = opened?;
    if failed[0] > 0 { Err("another rank has no GPU".to_owned()) } else { Ok(gpu) }
}

fn row(
    arguments: &Arguments,
    comm: &Communicator,
    on_gpu: &DeviceCommunicator,
    dtype: DType,
    test: OpCase,
    size: usize,
) -> Result<Row, String> {
    match dtype {
        DType::I8 => Bench::<i8>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::U8 => Bench::<u8>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::I32 => Bench::<i32>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::U32 => Bench::<u32>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::I64 => Bench::<i64>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::U64 => Bench::<u64>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::F16 => Bench::<f16>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::BF16 => Bench::<bf16>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::F32 => Bench::<f32>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::F64 => Bench::<f64>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::F8E4M3 => Bench::<F8E4M3>::new(arguments, comm, on_gpu, test, size)?.run(),
        DType::F8E5M2 => Bench::<F8E5M2>::new(arguments, comm, on_gpu, test, size)?.run(),
        _ => unreachable!("the arguments name types that GPUs know"),
    }
}
