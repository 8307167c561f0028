//! The driver: found at run time, or not.

use super::error::{GpuError, IntoGpuResult};
use super::gpu::lock;
use cudarc::driver::{result, sys::CUresult};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::error::Error;
use std::ffi::{OsStr, c_int};
use std::sync::Mutex;

/// CUDA 12.0, as a driver version: the first with every function that this crate calls.
const OLDEST: c_int = 12000;

/// The loaded driver. It stays loaded until the process ends.
static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// Returns the number of GPUs, or [`GpuError::NoDriver`] where there is no driver.
pub fn gpus() -> Result<usize, GpuError> {
    load("libcuda.so.1".as_ref())?;
    match result::init().or_gpu_error("cuInit") {
        Err(error) if error.is(CUresult::CUDA_ERROR_NO_DEVICE) => return Ok(0),
        answer => answer?,
    }
    Ok(result::device::get_count().or_gpu_error("cuDeviceGetCount")? as usize)
}

/// Loads the driver from this file unless one is loaded, and returns true if it did. Afterwards
/// cudarc finds the driver too. The version check ensures that cudarc finds every function we call,
/// because cudarc panics where one is missing.
pub(crate) fn load(file: &OsStr) -> Result<bool, GpuError> {
    let mut loaded = lock(&LOADED);
    let first = loaded.is_none();
    if first {
        // SAFETY: the initializers of libcuda have no preconditions. Another library of its name
        // must be trusted as the system's loader trusts it.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.map_err(absent)?;
        let found = version(&library)?;
        if found < OLDEST {
            return Err(GpuError::OldDriver { found });
        }
        *loaded = Some(library);
    }
    Ok(first)
}

/// A function that drivers have which are newer than the oldest we take.
///
/// # Safety
/// `F` is its type in the driver's header.
pub(crate) unsafe fn newer<F: Copy>(name: &[u8]) -> Option<F> {
    // SAFETY: the caller's word.
    lock(&LOADED)
        .as_ref()
        .and_then(|library| unsafe { library.get::<F>(name) }.ok().map(|function| *function))
}

/// The version of CUDA that the driver is of, 12040 for 12.4.
pub(crate) fn cuda() -> Result<c_int, GpuError> {
    let reason = "none is loaded".to_owned();
    lock(&LOADED).as_ref().map_or(Err(GpuError::NoDriver { reason }), version)
}

fn version(library: &Library) -> Result<c_int, GpuError> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    // SAFETY: the type is that of the driver's header. The function may be called before `cuInit`.
    let failed = unsafe {
        let function = library.get::<GetVersion>(b"cuDriverGetVersion");
        function.map_err(absent)?(&mut version)
    };
    if failed == 0 {
        Ok(version)
    } else {
        Err(GpuError::NoDriver { reason: format!("cuDriverGetVersion answers {failed}") })
    }
}

fn absent(error: libloading::Error) -> GpuError {
    GpuError::NoDriver { reason: reason(&error) }
}

/// Why a library or a function of it is not there.
pub(super) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
