//! NVLinks, counted by a stand-in for NVML; and none where there is no NVML.

use std::path::Path;
use std::process::Command;
use unisono_cuda::device::{GpuError, GpuInfo, NvLinks};
use unisono_cuda::emulator::set_gpu_count;

/// Tells a process what it should find.
const EXPECTED: &str = "UNISONO_TEST_NVML_EXPECTED";

/// A process of this test whose libraries are looked for in `folder`.
fn look(folder: &Path, expected: &str) {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["nvml::links_are_counted_where_there_is_nvml", "--exact", "--nocapture"]);
    let output = process.env("LD_LIBRARY_PATH", folder).env(EXPECTED, expected).output().unwrap();
    assert!(output.status.success(), "{expected}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn links_are_counted_where_there_is_nvml() {
    match std::env::var(EXPECTED).as_deref() {
        Ok("links") => return expect_links(),
        Ok(_) => return expect_none(),
        Err(_) => (),
    }
    if set_gpu_count(2).is_err() {
        return eprintln!("SKIPPED: needs a C++ compiler");
    }
    look(Path::new("/nowhere"), "nothing");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nvml-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    compiler.args(["-shared", "-fPIC", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/nvml.cpp"), "-o"]);
    assert!(compiler.arg(folder.join("libnvidia-ml.so.1")).status().unwrap().success());
    look(&folder, "links");
    std::fs::remove_dir_all(folder).unwrap();
}

fn expect_links() {
    set_gpu_count(8).unwrap();
    let sites = GpuInfo::all().unwrap();
    let links = |gpu: usize, other: usize| sites[gpu].nvlinks_to(&sites[other]);
    let nv_links = |count, version| Ok(NvLinks { count, version });
    assert_eq!([links(0, 2), links(2, 0), links(1, 3)], [(); 3].map(|()| nv_links(4, (3, 0))));
    assert_eq!([links(0, 1), links(3, 2)], [(); 2].map(|()| nv_links(1, (3, 0))));
    assert_eq!([links(4, 5), links(5, 4)], [(); 2].map(|()| nv_links(3, (4, 0))), "by way of switches");
    let none = [links(0, 3), links(0, 4), links(4, 0), links(6, 0), links(0, 6), links(0, 0)];
    assert_eq!(none, [(); 6].map(|()| nv_links(0, (0, 0))));
    let error = links(0, 7).unwrap_err().to_string();
    assert!(error.ends_with("nvmlDeviceGetHandleByPciBusId_v2 answers 6"), "{error}");
}

fn expect_none() {
    set_gpu_count(2).unwrap();
    let sites = GpuInfo::all().unwrap();
    let error = sites[0].nvlinks_to(&sites[1]).unwrap_err();
    assert!(matches!(error, GpuError::NvmlUnavailable { .. }), "{error}");
    assert!(error.to_string().starts_with("NVLinks are not known: libnvidia-ml.so.1: "), "{error}");
}
