//! GPUs, streams, memory and launches, on the emulator.

mod busy;
mod compute;
mod driver;
mod foreign_captures;
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

/// Returns true if this process runs only `test`. Otherwise starts a process that does and must
/// succeed.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    let output = process.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // A wrong name would run no test and succeed.
    assert!(output.status.success() && text[0].contains("1 passed"), "{test}: {}{}", text[0], text[1]);
    false
}

const ALONE: &str = "TEST_GPU_ALONE";

/// Any thread may use any of them.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<(Gpu, Stream, Event, Kernel, ImportedMemory, Graph)>();
    shared::<(Buffer<f32>, Pinned<u64>, View<'_, *const u8>, ViewMut<'_, *mut u8>)>();
};
