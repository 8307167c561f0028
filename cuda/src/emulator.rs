//! The CUDA emulator as this process's driver, for tests without a GPU.
//!
//! [`install`] builds the emulator with the kernels by the C++ compiler, once a machine, and loads
//! it in place of `libcuda.so`. Everything in [`device`](crate::device) then runs on it, and so
//! does cudarc. It checks more than a GPU does: see
//! `docs/decisions/0008-kernels-run-without-a-gpu.md`. Its timings say nothing about a GPU.
//!
//! It also keeps rules of real drivers: which calls wait for running kernels, which calls a capture
//! forbids, and more. The table in `rules.cpp` of the crate `cuda-emulator` says the effect of each
//! rule, whether it is kept by default, and why we take it for the driver's. [`rules`] lists them.
//!
//! A process takes its settings from these variables when it loads the library:
//!
//! - `CUDA_EMULATOR_NAME`: name of the GPUs. Programs take GPUs of another name than the default
//!   one for real ones.
//! - `CUDA_EMULATOR_GPUS`: number of GPUs, 1 to 8; 1 by default.
//! - `CUDA_EMULATOR_MULTIPROCESSORS`: multiprocessors of each GPU, 64 by default.
//! - `CUDA_EMULATOR_CAPABILITY`: compute capability, 80 by default, which is 8.0.
//! - `CUDA_EMULATOR_RULES`: `all`, `none`, a rule, or `-` and a rule, separated by commas. They
//!   apply from left to right over the defaults.

#[cfg(feature = "nvrtc")]
use crate::device::user_op::UserOpSource;
use crate::device::{Gpu, GpuError, PeerPath, driver};
use cuda_emulator::{BuildError, Emulator, Knobs};
pub use cuda_emulator::{Images, Rule};
#[cfg(feature = "nvrtc")]
use libloading::os::unix::{Library, RTLD_NOW};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// An error of installing the emulator.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// There is no C++ compiler.
    #[error("the CUDA emulator needs a C++ compiler: {program}: {reason}")]
    NoCompiler {
        /// The program that was started: `CXX`, or g++.
        program: String,
        /// The error of the system.
        reason: String,
    },
    /// The compiler refused the sources.
    #[error("the compiler refused the CUDA emulator: {said}")]
    Refused {
        /// The messages of the compiler.
        said: String,
    },
    /// There is no folder to build in.
    #[error("no folder to build the CUDA emulator in: {0}")]
    NoFolder(String),
    /// A driver is in use already. Install the emulator before the first GPU is opened.
    #[error(
        "the CUDA emulator was installed too late: a CUDA driver is in use; \
         install it before the first GPU is opened"
    )]
    TooLate,
    /// The emulator was built, but does not work.
    #[error("the CUDA emulator does not work: {0}")]
    Gpu(#[from] GpuError),
}

impl From<BuildError> for EmulatorError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::NoCompiler { program, reason } => Self::NoCompiler { program, reason },
            BuildError::Refused { said } => Self::Refused { said },
            BuildError::NoFolder(folder) => Self::NoFolder(folder),
        }
    }
}

/// Kernels of all types take longer to optimize than they run. The trainer's run again and again.
const EMULATOR: Emulator<'static> =
    Emulator { kernels: unisono_kernels::SOURCES, optimized: |name| name.contains("model_") };

/// Makes the emulator the CUDA driver of this process, and builds it where the cache has none.
///
/// Call it before the first GPU is opened. A second call does nothing.
///
/// # Errors
/// There is no C++ compiler, no cache folder, or another driver is loaded.
pub fn install() -> Result<(), EmulatorError> {
    knobs().map(|_| ())
}

/// Returns the path of the emulator's library, and builds it where the cache has none.
///
/// # Errors
/// There is no C++ compiler or no cache folder.
pub fn library() -> Result<PathBuf, EmulatorError> {
    Ok(EMULATOR.build()?)
}

/// Returns a folder for `LD_LIBRARY_PATH`, from which other processes load the emulator as their
/// driver and as cuBLAS. Builds the library where the cache has none.
///
/// Such a process takes its settings from variables that begin with `CUDA_EMULATOR_`.
///
/// # Errors
/// There is no C++ compiler or no cache folder.
pub fn driver_folder() -> Result<PathBuf, EmulatorError> {
    Ok(EMULATOR.driver_folder()?)
}

/// Adds the kernels of a user-defined reduction to the installed emulator.
#[cfg(feature = "nvrtc")]
pub(crate) fn load_user_op(source: &UserOpSource<'_>) -> Result<(), GpuError> {
    let kernels = cuda_emulator::UserKernels {
        name: format!("user_{:016x}", source.digest),
        header: ("user_op.cuh", source.header()),
        defines: source.defines().into(),
        sources: UserOpSource::FILES.into(),
    };
    let absent = |reason: String| GpuError::NoCompiler { what: "C++ compiler", reason };
    let file = EMULATOR.build_user_kernels(&kernels).map_err(|error| match error {
        BuildError::Refused { said } => GpuError::CompileFailed { said },
        error => absent(error.to_string()),
    })?;
    // SAFETY: the initializers only enter kernels into the list of the emulator.
    let library = unsafe { Library::open(Some(&file), RTLD_NOW) };
    std::mem::forget(library.map_err(|error| absent(error.to_string()))?);
    Ok(())
}

/// Sets the number of GPUs, 1 to 8. The default is 1. All have the same room for blocks.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_gpu_count(count: u32) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_gpu_count(count))
}

/// Sets the number of blocks that can be resident on a GPU at once.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_max_resident_blocks(blocks: u32) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_max_resident_blocks(blocks))
}

/// Makes a kernel too large for a GPU, like one that takes too many registers.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_oversized_kernel(kernel: &str) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_oversized_kernel(kernel))
}

/// Sets the CUDA version that the driver reports. The default is 12040, which is 12.4. GPUs that
/// are opened later get the kernels for this version.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_cuda_version(version: u32) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_cuda_version(version))
}

/// Sets how kernels of GPU `from` reach memory of GPU `to`. By default all paths are direct and
/// equally fast.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_peer_path(from: u32, to: u32, path: PeerPath) -> Result<(), EmulatorError> {
    let PeerPath { direct, rank, atomics } = path;
    knobs().map(|knobs| knobs.set_peer_path(from, to, direct, rank, atomics))
}

/// Sets the number of operations that a stream holds before a launch waits for room in it. The
/// default is 1024.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_stream_capacity(count: u32) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_stream_capacity(count))
}

/// Keeps a rule of real drivers, or does not. Returns false if there is no rule of this name. The
/// variable `CUDA_EMULATOR_RULES` does the same for a process.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_rule(rule: &str, on: bool) -> Result<bool, EmulatorError> {
    knobs().map(|knobs| knobs.set_rule(rule, on))
}

/// Returns the rules of real drivers that the emulator can keep.
///
/// # Errors
/// The emulator cannot be installed.
pub fn rules() -> Result<Vec<Rule>, EmulatorError> {
    knobs().map(Knobs::rules)
}

/// Returns the functions of libcuda that were called in this process, and how often.
///
/// # Errors
/// The emulator cannot be installed.
pub fn calls() -> Result<BTreeMap<String, u64>, EmulatorError> {
    knobs().map(Knobs::calls)
}

/// Returns how often a function of libcuda was called in this process, by its name with or without
/// the number of its version.
///
/// # Errors
/// The emulator cannot be installed.
pub fn call_count(function: &str) -> Result<u64, EmulatorError> {
    knobs().map(|knobs| knobs.call_count(function))
}

/// Returns the numbers of module images that were loaded in this process.
///
/// # Errors
/// The emulator cannot be installed.
pub fn images() -> Result<Images, EmulatorError> {
    knobs().map(Knobs::images)
}

/// Sets whether the driver loads machine code of kernels. By default it does. GPUs that are opened
/// while it does not compile PTX.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_accepts_cubins(accepts: bool) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_accepts_cubins(accepts))
}

/// Sets the seed of the order in which blocks and threads run.
///
/// # Errors
/// The emulator cannot be installed.
pub fn set_seed(seed: u64) -> Result<(), EmulatorError> {
    knobs().map(|knobs| knobs.set_seed(seed))
}

/// The installed emulator.
fn knobs() -> Result<&'static Knobs, EmulatorError> {
    static KNOBS: OnceLock<Result<Knobs, EmulatorError>> = OnceLock::new();
    KNOBS.get_or_init(|| load(&library()?)).as_ref().map_err(Clone::clone)
}

fn load(file: &Path) -> Result<Knobs, EmulatorError> {
    // The second condition: cudarc may have found a driver by itself.
    if !driver::load(file.as_os_str())? || !Gpu::open(0)?.is_emulated() {
        return Err(EmulatorError::TooLate);
    }
    Ok(Knobs::open(file).expect("the emulator is loaded already"))
}
