//! GPUs, streams, memory and launches, on the software device.

mod memory;

use unisono_cuda::device::Gpu;
use unisono_cuda::software::{self, SoftwareError};

/// A GPU of the software device; none, said aloud, where there is no C++ compiler.
fn gpu() -> Option<Gpu> {
    match software::install() {
        Ok(()) => Some(Gpu::open(0).unwrap()),
        Err(SoftwareError::NoCompiler { program, reason }) => {
            eprintln!("SKIPPED: needs a C++ compiler: {program}: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
