//! Answers of the driver about the GPU, without opening it: opening compiles the kernels, which
//! another experiment times.

use crate::rows::print;
use crate::{BenchResult, Options};
use cudarc::driver::result::device;
use serde_json::json;
use std::ffi::c_int;
use unisono_cuda::device::{GpuInfo, gpus};

/// Attributes by their numbers in the driver's header, because the bindings have those of CUDA 12.0
/// only.
const ATTRIBUTES: [(&str, c_int); 19] = [
    ("compute capability, major", 75),
    ("compute capability, minor", 76),
    ("multiprocessors", 16),
    ("memory clock, kHz", 36),
    ("memory bus, bits", 37),
    ("L2 bytes", 38),
    ("threads of a multiprocessor", 39),
    ("copy engines", 40),
    ("concurrent kernels", 31),
    ("cooperative launches", 95),
    ("blocks of a multiprocessor", 106),
    ("virtual memory management", 102),
    ("POSIX handles", 103),
    ("stream memory operations", 92),
    ("memory pools", 115),
    ("clusters", 120),
    ("IPC events", 125),
    ("multicast", 132),
    ("host NUMA node", 134),
];

pub(crate) fn run(_: &Options) -> BenchResult {
    print(&json!({"machine": "GPUs", "value": gpus()?}));
    let gpu = device::get(0)?;
    print(&json!({"machine": "device", "value": device::get_name(gpu)?}));
    for info in GpuInfo::all()? {
        print(&json!({"machine": "bus", "value": info.bus_id()?}));
    }
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // SAFETY: the driver is loaded already, and this is the type of its function.
    let (_library, get) = unsafe {
        let library = libloading::Library::new("libcuda.so.1")?;
        let get: GetAttribute = *library.get::<GetAttribute>(b"cuDeviceGetAttribute")?;
        (library, get)
    };
    for (name, attribute) in ATTRIBUTES {
        let mut value = 0;
        // SAFETY: the driver is initialized, and the value has room.
        let answer = unsafe { get(&mut value, attribute, gpu) };
        let value = if answer == 0 { json!(value) } else { json!(null) };
        print(&json!({"machine": name, "value": value}));
    }
    Ok(())
}
