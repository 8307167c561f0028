//! Detection of NVIDIA's Multi-Process Service (MPS), with which kernels of several processes run
//! on a GPU at the same time.

use super::driver::newer;
use super::gpu::Gpu;
use std::ffi::c_int;
use std::path::{Path, PathBuf};

impl Gpu {
    /// Returns true if kernels of this process run at the same time as those of other processes:
    /// MPS serves the GPU. Without it, the driver gives the GPU to one process after another.
    ///
    /// The driver says so since CUDA 12.2. For older ones, the pipe of the control daemon tells
    /// that MPS runs: `control` in the folder `CUDA_MPS_PIPE_DIRECTORY`, or else in
    /// `/tmp/nvidia-mps`.
    pub fn is_shared_by_mps(&self) -> bool {
        let told = mps_attribute(self.context().cu_device());
        told.unwrap_or_else(|| has_control_pipe(&pipe_folder()))
    }
}

/// Returns the driver's answer, or `None` if it does not know the question.
fn mps_attribute(device: c_int) -> Option<bool> {
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    let mut value = 0;
    // SAFETY: the type is that of the driver's header, in which the attribute is a C enumeration.
    // Drivers answer with an error for numbers that they do not know. There is room for the answer.
    let failed = unsafe {
        let ask = newer::<GetAttribute>(b"cuDeviceGetAttribute")?;
        ask(&mut value, MPS_ENABLED, device)
    };
    (failed == 0).then_some(value != 0)
}

fn pipe_folder() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

fn has_control_pipe(folder: &Path) -> bool {
    folder.join("control").exists()
}

/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`.
const MPS_ENABLED: c_int = 133;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_pipe_tells_that_mps_runs() {
        let folder = std::env::temp_dir().join(format!("unisono-mps-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(!has_control_pipe(&folder));
        std::fs::write(folder.join("control"), "").unwrap();
        assert!(has_control_pipe(&folder));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
