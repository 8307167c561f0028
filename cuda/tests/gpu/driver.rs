//! Machines without a driver, or with one that will not do: errors that say so.

use std::path::{Path, PathBuf};
use std::process::Command;
use unisono_cuda::device::{Gpu, GpuError, gpus};
use unisono_cuda::emulator::{self, EmulatorError};

/// Tells a process what it should find.
const EXPECTED: &str = "UNISONO_TEST_DRIVER_EXPECTED";

/// A process of this test whose libraries are looked for in `folder`.
fn look(folder: &Path, expected: &str) {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["driver::driver_properties_are_reported", "--exact", "--nocapture"]);
    let output = process.env("LD_LIBRARY_PATH", folder).env(EXPECTED, expected).output().unwrap();
    assert!(output.status.success(), "{expected}: {}", String::from_utf8_lossy(&output.stderr));
    let _ = std::fs::remove_dir_all(folder);
}

/// A folder with a driver that consists of this.
fn driver(name: &str, text: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("driver.cpp"), text).unwrap();
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    compiler.current_dir(&folder).args(["-shared", "-fPIC", "driver.cpp", "-o", "libcuda.so.1"]);
    match compiler.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            eprintln!("SKIPPED: needs a C++ compiler: {error}");
            return None;
        }
    }
    Some(folder)
}

#[test]
fn driver_properties_are_reported() {
    match std::env::var(EXPECTED).as_deref() {
        Ok("nothing") => return expect_nothing(),
        Ok("old") => return assert_eq!(gpus(), Err(GpuError::OldDriver { found: 11040 })),
        Ok("none") => return expect_no_gpu(),
        _ => (),
    }
    look(Path::new("/nowhere"), "nothing");
    let version = |number: u32| {
        format!("extern \"C\" int cuDriverGetVersion(int* version) {{ return *version = {number}, 0; }}\n")
    };
    let Some(old) = driver("old-driver", &version(11040)) else { return };
    look(&old, "old");
    let init = "extern \"C\" int cuInit(unsigned) { return 100; }\n\
        extern \"C\" int cuGetErrorString(int, const char** text) { return *text = \"no GPU\", 0; }\n";
    look(&driver("no-gpu", &(version(12020) + init)).unwrap(), "none");
}

fn expect_nothing() {
    match gpus() {
        Err(error @ GpuError::NoDriver { .. }) => {
            assert_eq!(Gpu::open(0).unwrap_err(), error);
            assert!(error.to_string().starts_with("no CUDA driver: libcuda.so.1: "), "{error}");
        }
        found => eprintln!("SKIPPED: this machine has a driver: {found:?}"),
    }
    // A driver that was missing at first can be installed.
    if crate::gpu().is_some_and(|gpu| gpu.is_emulated()) {
        assert_eq!(gpus(), Ok(2));
    }
}

fn expect_no_gpu() {
    assert_eq!(gpus(), Ok(0));
    assert_eq!(Gpu::open(0).unwrap_err(), GpuError::NoSuchGpu { ordinal: 0, gpus: 0 });
    let late = emulator::install();
    assert!(matches!(late, Err(EmulatorError::TooLate | EmulatorError::NoCompiler { .. })), "{late:?}");
}
