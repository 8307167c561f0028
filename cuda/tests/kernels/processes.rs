//! Two processes exchange through memory that each opens of the other, as on a GPU.

use crate::emulator::{Build, Device};
use crate::libcuda::*;
use std::ffi::c_int;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use unisono_cuda::device::WaitState;

/// Path of the library that the second process loads.
const LIBRARY: &str = "UNISONO_TEST_SECOND_PROCESS";

const MARK: &str = "handle ";

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryHandle([u8; 64]);

fn handle(device: &Device, memory: u64) -> MemoryHandle {
    let mut handle = MemoryHandle([0; 64]);
    assert_eq!(call!(device, cuIpcGetMemHandle(&mut handle => *mut MemoryHandle, memory => u64)), 0);
    handle
}

fn open(device: &Device, handle: MemoryHandle) -> Result<u64, c_int> {
    let mut memory = 0;
    let call =
        call!(device, cuIpcOpenMemHandle_v2(&mut memory => *mut u64, handle => MemoryHandle, 1 => u32));
    if call == 0 { Ok(memory) } else { Err(call) }
}

/// A line with hexadecimal digits; the test harness writes lines of its own.
fn line(handle: MemoryHandle) -> String {
    format!("\n{MARK}{}\n", handle.0.map(|byte| format!("{byte:02x}")).concat())
}

/// Reads on until such a line comes.
fn read(told: &mut dyn BufRead) -> MemoryHandle {
    let mut lines = told.lines().map(|line| line.expect("the other process's output"));
    let digits = lines.find_map(|line| line.strip_prefix(MARK).map(str::to_owned));
    let digits = digits.expect("the other process told nothing");
    let byte = |index: usize| u8::from_str_radix(&digits[2 * index..][..2], 16).expect("a handle");
    MemoryHandle(std::array::from_fn(byte))
}

/// One rank's part: sends its handle, receives the peer's, and exchanges.
fn exchange(device: &Device, rank: u32, tell: &mut dyn Write, told: &mut dyn BufRead) {
    let local = Rank::new(device, 10 + rank as u8);
    let handle = handle(device, local.shared);
    assert!(open(device, handle).is_err(), "a process cannot open its own");
    tell.write_all(line(handle).as_bytes()).unwrap();
    tell.flush().unwrap();
    let peer = open(device, read(told)).unwrap();
    let module = module(device, unisono_kernels::module("exchange").unwrap().text).unwrap();
    let kernel = function(device, module, "exchange").unwrap();
    local.start(device, kernel, peer, rank, Duration::from_secs(60));
    let status = local.status(device);
    assert_eq!(status.state(), Some(WaitState::Ok), "{status:?}");
    let output = download(device, local.output, &0u8, BYTES, local.stream);
    assert_eq!(output, [11 - rank as u8; BYTES]);
    assert_eq!(call!(device, cuIpcCloseMemHandle(peer => u64)), 0);
    local.end(device);
}

#[test]
fn two_processes_are_two_ranks() {
    if let Some(library) = std::env::var_os(LIBRARY) {
        return exchange(
            &Device::open(Path::new(&library)),
            1,
            &mut std::io::stdout(),
            &mut std::io::stdin().lock(),
        );
    }
    let build =
        Build { name: "processes.so", sources: &["kernels/exchange.cu"], library: true, races: false };
    let Some(library) = build.run() else { return };
    let mut second = Command::new(std::env::current_exe().unwrap());
    second.args(["processes::two_processes_are_two_ranks", "--exact", "--nocapture"]).env(LIBRARY, &library);
    let mut second = second.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(second.stdout.take().unwrap());
    exchange(&Device::open(&library), 0, &mut second.stdin.take().unwrap(), &mut told);
    assert!(second.wait().unwrap().success(), "the second process failed");
}
