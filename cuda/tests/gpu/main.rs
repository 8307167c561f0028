//! GPUs, streams, memory and launches, on the emulator.

mod busy;
mod compute;
mod driver;
mod graphs;
mod install;
mod interop;
mod ipc;
mod launches;
mod memory;
mod nvml;
mod streams;

use unisono_cuda::device::{
    Buffer, Event, Gpu, Graph, ImportedMemory, Kernel, Pinned, Stream, View, ViewMut,
};
use unisono_cuda::emulator::{EmulatorError, set_gpu_count};

/// Returns one of the two GPUs of the emulator. Returns `None` with a message where there is no C++
/// compiler. With `UNISONO_TEST_GPU` it is the machine's first GPU.
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

/// Returns another GPU, which the emulator has. Returns `None` with a message where a machine has
/// only one.
fn other_gpu() -> Option<Gpu> {
    Gpu::open(1).map_err(|error| eprintln!("SKIPPED: needs two GPUs: {error}")).ok()
}

/// Any thread may use any of them.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<(Gpu, Stream, Event, Kernel, ImportedMemory, Graph)>();
    shared::<(Buffer<f32>, Pinned<u64>, View<'_, *const u8>, ViewMut<'_, *mut u8>)>();
};
