//! Settings of a process, counts of calls, and images of modules.

use super::world::{each_way, kernel, with};
use crate::emulator::Device;
use crate::libcuda::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;

/// Names of the rules, and whether each is kept.
pub(super) fn rules(device: &Device) -> BTreeMap<String, bool> {
    // SAFETY: the types are those of `emulator.h`, and names are static.
    unsafe {
        let name = device.symbol::<unsafe extern "C" fn(u32) -> *const c_char>("unisono_rule");
        let kept = device.symbol::<unsafe extern "C" fn(u32) -> u32>("unisono_rule_is_on");
        let text = |name: *const c_char| CStr::from_ptr(name).to_string_lossy().into_owned();
        let indices = (0..).take_while(|&index| !name(index).is_null());
        indices.map(|index| (text(name(index)), kept(index) != 0)).collect()
    }
}

fn count(device: &Device, call: &str) -> u64 {
    let name = CString::new(call).unwrap();
    // SAFETY: the type is that of `emulator.h`.
    unsafe {
        device.symbol::<unsafe extern "C" fn(*const c_char) -> u64>("unisono_call_count")(name.as_ptr())
    }
}

fn images(device: &Device) -> [u64; 2] {
    // SAFETY: the type is that of `emulator.h`.
    [0, 1].map(|kind| unsafe { device.symbol::<unsafe extern "C" fn(u32) -> u64>("unisono_images")(kind) })
}

fn attribute(device: &Device, number: c_int) -> c_int {
    let mut value = 0;
    let call = call!(device, cuDeviceGetAttribute(&mut value => *mut c_int, number => c_int, 0 => c_int));
    assert_eq!(call, 0);
    value
}

#[test]
fn settings_come_from_the_environment() {
    let settings = [
        ("CUDA_EMULATOR_NAME", "NVIDIA H100"),
        ("CUDA_EMULATOR_GPUS", "3"),
        ("CUDA_EMULATOR_MULTIPROCESSORS", "132"),
        ("CUDA_EMULATOR_CAPABILITY", "90"),
        ("CUDA_EMULATOR_RULES", "none,free-waits,multicast,-free-waits"),
    ];
    with("calls::settings_come_from_the_environment", &settings, |device| {
        let (mut name, mut gpus) = ([0u8; 64], 0);
        let named = call!(device, cuDeviceGetName(name.as_mut_ptr() => *mut u8, 64 => c_int, 0 => c_int));
        let counted = call!(device, cuDeviceGetCount(&mut gpus => *mut c_int));
        assert_eq!((named, counted, gpus), (0, 0, 3));
        assert_eq!(CStr::from_bytes_until_nul(&name).unwrap().to_str(), Ok("NVIDIA H100"));
        assert_eq!([16, 75, 76].map(|number| attribute(device, number)), [132, 9, 0]);
        let kept = rules(device).into_iter().filter(|(_, kept)| *kept).map(|(name, _)| name);
        assert_eq!(kept.collect::<Vec<_>>(), ["multicast"]);
    });
}

#[test]
fn settings_with_mistakes_are_refused() {
    with("calls::settings_with_mistakes_are_refused", &[], |_| {
        for (variable, value) in [("CUDA_EMULATOR_RULES", "free-wait"), ("CUDA_EMULATOR_GPUS", "9")] {
            let mut other = Command::new(std::env::current_exe().unwrap());
            other.args(["rules::calls::settings_come_from_the_environment", "--exact", "--nocapture"]);
            let output = other.env(variable, value).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && errors.contains(variable), "{errors}");
        }
    });
}

#[test]
fn calls_are_counted_by_name() {
    with("calls::calls_are_counted_by_name", &[], |device| {
        assert_eq!([count(device, "cuMemAlloc"), count(device, "cuMemAlloc_v2")], [0, 0]);
        let memory = [(); 3].map(|()| allocate(device, 64));
        assert_eq!(call!(device, cuMemFree_v2(memory[0] => u64)), 0);
        assert_eq!(["cuMemAlloc", "cuMemAlloc_v2", "cuMemFree"].map(|name| count(device, name)), [3, 3, 1]);
    });
}

/// A cubin with code sections of these names and nothing else.
fn cubin(kernels: &[&str]) -> Vec<u8> {
    let names = kernels.iter().map(|name| format!(".text.{name}\0")).collect::<String>();
    let mut image = vec![0u8; 64];
    image.extend(names.bytes());
    image.resize(image.len().next_multiple_of(8), 0);
    let sections = image.len() as u64;
    let mut name = 0u32;
    // The names come first.
    let mut section = |name_offset: u32, offset: u64| {
        let mut header = [0u8; 64];
        header[..4].copy_from_slice(&name_offset.to_le_bytes());
        header[24..32].copy_from_slice(&offset.to_le_bytes());
        image.extend(header);
    };
    section((names.len() as u32).saturating_sub(1), 64);
    for kernel in kernels {
        section(name, 0);
        name += kernel.len() as u32 + 7;
    }
    image[..6].copy_from_slice(b"\x7fELF\x02\x01");
    // The machine is CUDA, and the architecture that of capability 8.0.
    image[18..20].copy_from_slice(&190u16.to_le_bytes());
    image[48..52].copy_from_slice(&80u32.to_le_bytes());
    image[40..48].copy_from_slice(&sections.to_le_bytes());
    image[58..60].copy_from_slice(&64u16.to_le_bytes());
    image[60..62].copy_from_slice(&(kernels.len() as u16 + 1).to_le_bytes());
    image
}

#[test]
fn modules_are_texts_or_cubins() {
    with("calls::modules_are_texts_or_cubins", &[], |device| {
        let load = |image: &[u8]| {
            let mut module = std::ptr::null_mut();
            let image = image.as_ptr().cast::<c_void>();
            let call = call!(device, cuModuleLoadData(&mut module => *mut Handle, image => *const c_void));
            (call, module)
        };
        let (loaded, module) = load(&cubin(&["spin", "note"]));
        assert_eq!(loaded, 0);
        assert!(function(device, module, "note").is_ok() && function(device, module, "spin").is_ok());
        assert_eq!(function(device, module, "schedule_note"), Err(500), "in no section");
        assert_eq!((load(&cubin(&["absent"])).0, load(&cubin(&[])).0), (200, 200));
        kernel(device, "spin");
        assert_eq!(images(device), [1, 1], "refused images do not count");
    });
}

/// A process that finds the emulator by `LD_LIBRARY_PATH` has it as its driver.
#[test]
fn driver_folder_has_the_names_of_the_driver() {
    let Ok(folder) = unisono_cuda::emulator::driver_folder() else { return };
    for name in ["libcuda.so", "libcuda.so.1", "libcublas.so.12"] {
        let file = folder.join(name).canonicalize().unwrap();
        assert_eq!(file, unisono_cuda::emulator::library().unwrap().canonicalize().unwrap(), "{name}");
    }
}

#[test]
fn registers_limit_blocks_by_rule() {
    each_way("calls::registers_limit_blocks_by_rule", "register-occupancy", &[], |device, kept| {
        let together = |name: &str, threads: c_int| {
            let (kernel, mut blocks) = (kernel(device, name), 0);
            let call = call!(device, cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks => *mut c_int, kernel => Handle, threads => c_int, 0 => usize
            ));
            assert_eq!(call, 0);
            blocks
        };
        let found = [("schedule_note", 512), ("schedule_note", 32), ("note", 512), ("note", 1024)]
            .map(|(name, threads)| together(name, threads));
        assert_eq!(found, if kept { [1, 16, 2, 1] } else { [1; 4] });
    });
}

#[test]
fn release_pauses_can_be_switched_off() {
    each_way("calls::release_pauses_can_be_switched_off", "release-pauses", &[], |device, kept| {
        assert_eq!(rules(device)["release-pauses"], kept);
    });
}
