//! Places of GPUs, and the paths between them.

use super::driver::gpus;
use super::error::{GpuError, IntoGpuResult};
use super::gpu::Gpu;
use super::nvml::{self, NvLinks};
use cudarc::driver::{result, sys, sys::CUdevice_P2PAttribute as Attribute};
use std::ffi::{CStr, c_char};
use std::path::Path as File;

/// The path from kernels of one GPU to memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPath {
    /// True if kernels access the memory directly.
    pub direct: bool,
    /// The driver's performance rank of the path: 0 is the best, and equal numbers are equally
    /// good.
    pub rank: u32,
    /// True if atomics work over the path as in local memory.
    pub atomics: bool,
}

/// A GPU as the driver knows it, whether this process uses it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    ordinal: usize,
    device: sys::CUdevice,
}

impl GpuInfo {
    /// Returns all GPUs that this process sees, by number.
    ///
    /// # Errors
    /// There is no driver, or the driver fails.
    pub fn all() -> Result<Vec<GpuInfo>, GpuError> {
        let site = |ordinal| {
            let device = result::device::get(ordinal as i32).or_gpu_error("cuDeviceGet")?;
            Ok(GpuInfo { ordinal, device })
        };
        (0..gpus()?).map(site).collect()
    }

    /// The GPU's number.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Returns the driver's name of the GPU.
    ///
    /// # Errors
    /// The driver fails.
    pub fn name(&self) -> Result<String, GpuError> {
        result::device::get_name(self.device).or_gpu_error("cuDeviceGetName")
    }

    /// Returns the identifier of the GPU, the same in all processes. Parts of one GPU have
    /// different ones.
    ///
    /// # Errors
    /// The driver fails.
    pub fn uuid(&self) -> Result<[u8; 16], GpuError> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the driver has given out the number, and there is room for the answer.
        unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, self.device) }.or_gpu_error("cuDeviceGetUuid_v2")?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Returns true if kernels of this GPU can access memory of the other directly.
    ///
    /// # Errors
    /// The driver fails.
    pub fn can_access_peer(&self, other: &GpuInfo) -> Result<bool, GpuError> {
        let mut can = 0;
        // SAFETY: the driver has given out both numbers.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.device, other.device) }
            .or_gpu_error("cuDeviceCanAccessPeer")?;
        Ok(self == other || can != 0)
    }

    /// Returns the path from kernels of this GPU to memory of the other.
    ///
    /// # Errors
    /// The driver fails.
    pub fn peer_path(&self, other: &GpuInfo) -> Result<PeerPath, GpuError> {
        if self == other {
            return Ok(PeerPath { direct: true, rank: 0, atomics: true });
        }
        Ok(PeerPath {
            direct: self.can_access_peer(other)?,
            rank: self.peer_attribute(other, Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
            atomics: self
                .peer_attribute(other, Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)?
                != 0,
        })
    }

    /// Returns the NVLinks between this GPU and the other, counted by NVML.
    ///
    /// # Errors
    /// [`GpuError::NvmlUnavailable`] where NVML is missing or does not know the GPUs. Only the path
    /// is known then.
    pub fn nvlinks_to(&self, other: &GpuInfo) -> Result<NvLinks, GpuError> {
        if self == other { Ok(NvLinks::default()) } else { nvml::links(&self.bus_id()?, &other.bus_id()?) }
    }

    /// Returns the NVLinks between this GPU and the one at this PCI bus address, which need not be
    /// visible to this process.
    ///
    /// # Errors
    /// As [`GpuInfo::nvlinks_to`].
    pub fn nvlinks_to_bus_id(&self, bus_id: &str) -> Result<NvLinks, GpuError> {
        nvml::links(&self.bus_id()?, bus_id)
    }

    fn peer_attribute(&self, other: &GpuInfo, which: Attribute) -> Result<u32, GpuError> {
        let mut value = 0;
        // SAFETY: the driver has given out both numbers.
        unsafe { sys::cuDeviceGetP2PAttribute(&mut value, which, self.device, other.device) }
            .or_gpu_error("cuDeviceGetP2PAttribute")?;
        Ok(value as u32)
    }

    /// Returns the PCI bus address as Linux writes it: domain, bus, device and function,
    /// `0000:3b:00.0`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn bus_id(&self) -> Result<String, GpuError> {
        let mut text: [c_char; BUS_ID_BYTES] = [0; BUS_ID_BYTES];
        // SAFETY: there is room for as many.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), BUS_ID_BYTES as i32, self.device) }
            .or_gpu_error("cuDeviceGetPCIBusId")?;
        let bytes = text.map(|byte| byte as u8);
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().to_lowercase())
    }

    /// Returns the NUMA node of the host next to the GPU. `None` where the host has only one, or
    /// does not report it.
    ///
    /// # Errors
    /// The driver fails.
    pub fn numa_node(&self) -> Result<Option<usize>, GpuError> {
        Ok(node_of(File::new("/sys/bus/pci/devices"), &self.bus_id()?))
    }
}

impl Gpu {
    /// Returns the place of the GPU.
    pub fn info(&self) -> GpuInfo {
        GpuInfo { ordinal: self.ordinal(), device: self.context().cu_device() }
    }
}

/// Reads the NUMA node of a device from Linux, which writes a negative number for none.
fn node_of(devices: &File, bus_id: &str) -> Option<usize> {
    std::fs::read_to_string(devices.join(bus_id).join("numa_node")).ok()?.trim().parse().ok()
}

/// Size of the longest address, with its zero.
const BUS_ID_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_what_linux_says() {
        let devices = std::env::temp_dir().join(format!("unisono-devices-{}", std::process::id()));
        for (bus_id, text) in [("0000:3b:00.0", "1\n"), ("0000:86:00.0", "-1\n")] {
            std::fs::create_dir_all(devices.join(bus_id)).unwrap();
            std::fs::write(devices.join(bus_id).join("numa_node"), text).unwrap();
        }
        let found = ["0000:3b:00.0", "0000:86:00.0", "0000:00:00.0"].map(|bus_id| node_of(&devices, bus_id));
        std::fs::remove_dir_all(&devices).unwrap();
        assert_eq!(found, [Some(1), None, None]);
    }
}
