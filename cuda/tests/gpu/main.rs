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
use unisono_cuda::test_gpu::{other_gpu, test_gpu};

/// Returns one of the two GPUs of the emulator, or the machine's first GPU: see [`test_gpu`].
fn gpu() -> Option<Gpu> {
    test_gpu(2)
}

/// Any thread may use any of them.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<(Gpu, Stream, Event, Kernel, ImportedMemory, Graph)>();
    shared::<(Buffer<f32>, Pinned<u64>, View<'_, *const u8>, ViewMut<'_, *mut u8>)>();
};
