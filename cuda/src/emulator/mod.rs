//! The software device: a driver without a GPU, for tests of what runs on one.
//!
//! It is built by the C++ compiler, together with the kernels, when it is first installed on a machine, and kept in the
//! user's cache. Everything in `unisono_cuda::device` then runs on it, and so does cudarc. It checks much that a GPU does
//! not (see `docs/decisions/0008-kernels-run-without-a-gpu.md`); what it says of speed means nothing.

mod compile;
mod sources;

#[cfg(feature = "nvrtc")]
use crate::device::user_op::UserOpSource;
use crate::device::{Gpu, GpuError, PeerPath as Link, driver};
#[cfg(feature = "nvrtc")]
use crate::emulator::sources::SOURCES;
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Why there is no software device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// There is no C++ compiler.
    #[error("the software device needs a C++ compiler: {program}: {reason}")]
    NoCompiler {
        /// What was tried: `CXX`, or g++.
        program: String,
        /// What the system said.
        reason: String,
    },
    /// The compiler refused the sources.
    #[error("the compiler refused the software device: {said}")]
    Refused {
        /// Its messages.
        said: String,
    },
    /// No folder to build it in.
    #[error("no folder for the software device: {0}")]
    NoFolder(String),
    /// A driver is in use already: it must be installed before the first GPU is opened.
    #[error("the software device was installed too late: a CUDA driver is in use")]
    TooLate,
    /// It was built, but does not work.
    #[error("the software device does not work: {0}")]
    Gpu(#[from] GpuError),
}

/// Makes the software device the CUDA driver of this process; nothing if it is already. Builds it where that has not been
/// done. It must be called before the first GPU is opened.
pub fn install() -> Result<(), EmulatorError> {
    device().map(|_| ())
}

/// The file of the software device, built if it has not been.
pub fn library() -> Result<PathBuf, EmulatorError> {
    crate::emulator::compile::library()
}

/// Adds kernels of a reduction of one's own to the device, which is installed.
#[cfg(feature = "nvrtc")]
pub(crate) fn load_user_op(source: &UserOpSource<'_>) -> Result<(), GpuError> {
    let file = crate::emulator::compile::user_op(source).map_err(|error| match error {
        EmulatorError::Refused { said } => GpuError::CompileFailed { said },
        error => GpuError::NoCompiler { what: "C++ compiler", reason: error.to_string() },
    })?;
    // SAFETY: its initialisers enter kernels into the list of the device.
    let library = unsafe { Library::open(Some(&file), RTLD_NOW) };
    let unfit =
        |error: libloading::Error| GpuError::NoCompiler { what: "C++ compiler", reason: error.to_string() };
    std::mem::forget(library.map_err(unfit)?);
    Ok(())
}

/// The text of a file below `cuda`.
#[cfg(feature = "nvrtc")]
pub(crate) fn source(path: &str) -> &'static str {
    SOURCES.iter().find(|(known, _)| *known == path).map_or("", |(_, text)| text)
}

/// Names and texts of the headers of kernels.
#[cfg(feature = "nvrtc")]
pub(crate) fn headers() -> Vec<(String, String)> {
    let header = |(path, text): &(&str, &str)| {
        let name = path.strip_prefix("kernels/")?;
        name.ends_with(".cuh").then(|| (name.to_owned(), (*text).to_owned()))
    };
    SOURCES.iter().filter_map(header).collect()
}

/// GPUs that there are from now on: 1 to 8, and 1 at first. All have the same room for blocks.
pub fn set_gpu_count(count: u32) -> Result<(), EmulatorError> {
    set(b"unisono_set_gpu_count", count)
}

/// Blocks that can be resident at once on a GPU, from now on.
pub fn set_max_resident_blocks(blocks: u32) -> Result<(), EmulatorError> {
    set(b"unisono_set_max_resident_blocks", blocks)
}

/// Makes a kernel too large for a GPU from now on, as one that takes too many registers would be.
pub fn set_oversized_kernel(kernel: &str) -> Result<(), EmulatorError> {
    let name = CString::new(kernel).expect("names have no zeros");
    set(b"unisono_set_oversized_kernel", name.as_ptr())
}

/// The version of CUDA that the driver says it is of, from now on: 12040, at first, is 12.4. GPUs that are opened
/// later get the kernels for it.
pub fn set_cuda_version(version: u32) -> Result<(), EmulatorError> {
    set(b"unisono_set_cuda_version", version)
}

/// How kernels of GPU `from` reach memory of GPU `to`, from now on; at first all do, equally well.
pub fn set_peer_path(from: u32, to: u32, path: Link) -> Result<(), EmulatorError> {
    let Link { direct, rank, atomics } = path;
    // SAFETY: the types are those of `emulator.h`.
    unsafe {
        let function =
            device()?.get::<unsafe extern "C" fn(u32, u32, u32, u32, u32)>(b"unisono_set_peer_path");
        function.expect("a function of emulator.h")(from, to, direct.into(), rank, atomics.into());
    }
    Ok(())
}

/// Pieces of work that a stream holds before a launch waits for room in it, from now on; 1024 at first.
pub fn set_stream_capacity(count: u32) -> Result<(), EmulatorError> {
    set(b"unisono_set_stream_capacity", count)
}

/// Chooses the order in which blocks and threads run, from now on.
pub fn set_seed(seed: u64) -> Result<(), EmulatorError> {
    set(b"unisono_set_seed", seed)
}

/// The installed device.
fn device() -> Result<&'static Library, EmulatorError> {
    static DEVICE: OnceLock<Result<Library, EmulatorError>> = OnceLock::new();
    DEVICE.get_or_init(|| load(&library()?)).as_ref().map_err(Clone::clone)
}

fn load(file: &Path) -> Result<Library, EmulatorError> {
    // The second: cudarc may have found a driver by itself.
    if !driver::load(file.as_os_str())? || !Gpu::open(0)?.is_emulated() {
        return Err(EmulatorError::TooLate);
    }
    // SAFETY: it is loaded already.
    let again = unsafe { Library::open(Some(file), RTLD_NOW) };
    Ok(again.expect("what is loaded can be opened"))
}

/// Calls a function of the device that sets something.
fn set<T>(name: &[u8], value: T) -> Result<(), EmulatorError> {
    // SAFETY: the types are those of `emulator.h`.
    unsafe {
        let function = device()?.get::<unsafe extern "C" fn(T)>(name);
        function.expect("a function of emulator.h")(value);
    }
    Ok(())
}
