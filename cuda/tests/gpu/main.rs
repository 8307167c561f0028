//! GPUs, streams, memory and launches, on the software device.

mod busy;
mod compute;
mod driver;
mod graphs;
mod interop;
mod ipc;
mod launches;
mod memory;
mod nvml;
mod software;
mod streams;

use unisono_cuda::device::{
    Buffer, Event, Gpu, Graph, ImportedMemory, Kernel, Pinned, Stream, View, ViewMut,
};
use unisono_cuda::emulator::{EmulatorError, set_gpu_count};

/// A GPU of the software device, of two that there are; none, said aloud, where there is no C++ compiler. With
/// `UNISONO_TEST_GPU` the machine's first.
fn gpu() -> Option<Gpu> {
    if std::env::var_os("UNISONO_TEST_GPU").is_some() {
        return Some(Gpu::open(0).unwrap());
    }
    match set_gpu_count(2) {
        Ok(()) => Some(Gpu::open(0).unwrap()),
        Err(EmulatorError::NoCompiler { program, reason }) => {
            eprintln!("SKIPPED: needs a C++ compiler: {program}: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Another one, which the software device has; none, said aloud, where a machine has only one.
fn other_gpu() -> Option<Gpu> {
    Gpu::open(1).map_err(|error| eprintln!("SKIPPED: needs two GPUs: {error}")).ok()
}

/// Any thread may use any of them.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<(Gpu, Stream, Event, Kernel, ImportedMemory, Graph)>();
    shared::<(Buffer<f32>, Pinned<u64>, View<'_, *const u8>, ViewMut<'_, *mut u8>)>();
};
