//! What the driver says about the GPU.

use crate::rows::print;
use crate::{Bench, BenchResult};
use serde_json::json;
use std::ffi::c_int;

/// Attributes by their numbers in the driver's header, because the bindings have those of CUDA 12.0
/// only.
const ATTRIBUTES: [(&str, c_int); 17] = [
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

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let gpu = &bench.gpu;
    let ((major, minor), (free, all)) = (gpu.capability()?, gpu.memory()?);
    print(&json!({"machine": "device", "value": gpu.name()}));
    print(&json!({"machine": "compute capability", "value": format!("{major}.{minor}")}));
    print(&json!({"machine": "bytes, free and all", "value": [free, all]}));
    print(&json!({"machine": "bus", "value": gpu.info().bus_id()?}));
    print(&json!({"machine": "16-byte lines", "value": gpu.has_ll128()}));
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // SAFETY: the driver is loaded already, and this is the type of its function.
    let (_library, get) = unsafe {
        let library = libloading::Library::new("libcuda.so.1")?;
        let get: GetAttribute = *library.get::<GetAttribute>(b"cuDeviceGetAttribute")?;
        (library, get)
    };
    for (name, attribute) in ATTRIBUTES {
        let mut value = 0;
        // SAFETY: the device is open, and the value has room.
        let answer = unsafe { get(&mut value, attribute, gpu.ordinal() as c_int) };
        let value = if answer == 0 { json!(value) } else { json!(null) };
        print(&json!({"machine": name, "value": value}));
    }
    Ok(())
}
