//! Memory of one process opened by another: tests support, and measures the time.

use crate::rows::print;
use crate::{Bench, BenchResult};
use serde_json::json;
use std::process::{Command, ExitCode};
use std::time::Instant;
use unisono_cuda::device::{Gpu, IpcHandle};

const HANDLE: &str = "GPU_BENCH_HANDLE";
const SOFTWARE: &str = "GPU_BENCH_SOFTWARE";

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let row = |case: &str, works: bool, begun: Instant| {
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        print(&json!({"experiment": "sharing", "case": case, "works": works, "ms": ms}));
    };
    let begun = Instant::now();
    let buffer = bench.gpu.upload(&[7u32; 1024])?;
    let exported = buffer.export();
    let here = exported.clone().and_then(|handle| bench.gpu.import(&handle)).is_ok();
    row("in the same process", here, begun);
    let begun = Instant::now();
    let there = exported.is_ok_and(|handle| other_process(&handle, bench.gpu.is_emulated()));
    row("in another process, its start included", there, begun);
    Ok(())
}

fn other_process(handle: &IpcHandle, software: bool) -> bool {
    let hex: String = handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let Ok(program) = std::env::current_exe() else {
        return false;
    };
    let status =
        Command::new(program).env(HANDLE, hex).env(SOFTWARE, u8::from(software).to_string()).status();
    status.is_ok_and(|status| status.success())
}

/// The handle that the process which started this one has passed on.
pub(crate) fn handle_for_child() -> Option<String> {
    std::env::var(HANDLE).ok()
}

/// Opens what another process exported.
pub(crate) fn child(hex: &str) -> ExitCode {
    match open(hex) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu: memory of another process: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(hex: &str) -> Result<(), String> {
    if std::env::var(SOFTWARE).as_deref() == Ok("1") {
        unisono_cuda::emulator::install().map_err(|error| error.to_string())?;
    }
    let byte =
        |index: usize| hex.get(2 * index..2 * index + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let mut bytes = [0; IpcHandle::BYTES];
    for (index, target) in bytes.iter_mut().enumerate() {
        *target = byte(index).ok_or("not a handle")?;
    }
    let gpu = Gpu::open(0).map_err(|error| error.to_string())?;
    gpu.import(&IpcHandle::from_bytes(&bytes)).map(|_| ()).map_err(|error| error.to_string())
}
