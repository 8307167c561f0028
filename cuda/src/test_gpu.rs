//! The GPU that tests use: one of the emulator, or the machine's own.

use crate::device::Gpu;
use crate::emulator::{self, EmulatorError};
use std::sync::OnceLock;

/// Name of the variable that selects the machine's first GPU for tests. It has no prefix of the
/// library, because ranks refuse settings that they do not know.
pub const TEST_ON_GPU: &str = "TEST_ON_GPU";

/// Returns true if tests use the machine's first GPU: the variable [`TEST_ON_GPU`] is set.
pub fn uses_machine_gpu() -> bool {
    std::env::var_os(TEST_ON_GPU).is_some()
}

/// Returns the GPU for tests: the machine's first one where [`TEST_ON_GPU`] is set, and the first
/// of `gpus` GPUs of the emulator otherwise. Returns `None` with a message where there is no C++
/// compiler for the emulator.
///
/// # Panics
/// The machine's GPU or the emulator cannot be opened.
pub fn test_gpu(gpus: u32) -> Option<Gpu> {
    if uses_machine_gpu() {
        // Opening a GPU loads all kernels, so the tests of one process share an open one.
        static OPEN: OnceLock<Gpu> = OnceLock::new();
        return Some(OPEN.get_or_init(|| Gpu::open(0).expect("the machine's first GPU")).clone());
    }
    match emulator::set_gpu_count(gpus) {
        Ok(()) => Some(Gpu::open(0).expect("a GPU of the emulator")),
        Err(EmulatorError::NoCompiler { program, reason }) => {
            eprintln!("SKIPPED: needs a C++ compiler: {program}: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns another GPU than the first, or `None` with a message where there is only one.
pub fn other_gpu() -> Option<Gpu> {
    Gpu::open(1).map_err(|error| eprintln!("SKIPPED: needs two GPUs: {error}")).ok()
}

/// Returns true if user-defined reductions can be compiled: by the emulator, or by NVRTC where it
/// is found. Otherwise prints a message and returns false.
#[cfg(feature = "nvrtc")]
pub fn can_compile(gpu: &Gpu) -> bool {
    use crate::device::{DeviceReduceOp, GpuError};
    match DeviceReduceOp::<f32>::compile(gpu, "a + b") {
        Err(error @ GpuError::NoCompiler { .. }) => {
            eprintln!("SKIPPED: {error}");
            false
        }
        // A test reports other errors better.
        _ => true,
    }
}
