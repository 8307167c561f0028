//! Two processes on one GPU: by slices of time, and under MPS.

use super::world::{Note, Spin, each_way, kernel, words};
use crate::emulator::Device;
use crate::libcuda::*;
use std::ffi::c_int;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// `CUipcMemHandle`, as hexadecimal digits, of the memory that both use.
const HANDLE: &str = "RULE_TEST_SHARED_HANDLE";

#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryHandle([u8; 64]);

/// The memory of the other process, if this is the second one.
fn opened(device: &Device) -> Option<u64> {
    let digits = std::env::var(HANDLE).ok()?;
    let handle =
        MemoryHandle(std::array::from_fn(|index| u8::from_str_radix(&digits[2 * index..][..2], 16).unwrap()));
    let mut memory = 0;
    let open =
        call!(device, cuIpcOpenMemHandle_v2(&mut memory => *mut u64, handle => MemoryHandle, 1 => u32));
    assert_eq!(open, 0);
    Some(memory)
}

/// Starts this test again as a second process that opens `memory`.
fn start(device: &Device, test: &str, memory: u64) -> Child {
    let mut handle = MemoryHandle([0; 64]);
    assert_eq!(call!(device, cuIpcGetMemHandle(&mut handle => *mut MemoryHandle, memory => u64)), 0);
    let digits = handle.0.map(|byte| format!("{byte:02x}")).concat();
    let mut second = Command::new(std::env::current_exe().unwrap());
    second.args([&format!("rules::{test}"), "--exact", "--nocapture"]).env(HANDLE, digits);
    second.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Arguments of the kernel `alone`.
#[repr(C)]
struct Alone {
    shared: *const AtomicU32,
    disturbed: *const AtomicU32,
    number: u32,
    rounds: u32,
}

/// How often another process disturbed rounds of this one.
fn disturbed(device: &Device, shared: u64, number: u32) -> u32 {
    let (disturbed, stream) = (&words(device, 1)[0], stream(device));
    let arguments = Alone { shared: shared as *const AtomicU32, disturbed, number, rounds: 5000 };
    assert_eq!(launch(device, kernel(device, "alone"), &arguments, stream), 0);
    assert_eq!(synchronize(device, stream), 0);
    disturbed.load(Ordering::SeqCst)
}

#[test]
fn time_slices_keep_processes_apart() {
    let test = "sharing::time_slices_keep_processes_apart";
    each_way(test, "time-slices", &[], |device, kept| {
        if let Some(memory) = opened(device) {
            // As long as the first process lives.
            loop {
                let found = disturbed(device, memory, 2);
                assert!(found == 0 || !kept, "{found} rounds were disturbed");
                if writeln!(std::io::stdout(), "\nround").is_err() {
                    return;
                }
            }
        }
        let memory = allocate(device, 64);
        let mut second = start(device, test, memory);
        let mut told = BufReader::new(second.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(told.any(|line| line == "round"), "the second process has failed");
        if kept {
            assert_eq!(disturbed(device, memory, 1), 0);
            assert!(told.any(|line| line == "round"), "the second process was disturbed");
        } else {
            while disturbed(device, memory, 1) == 0 {}
        }
        second.kill().unwrap();
        second.wait().unwrap();
    });
}

/// The only multiprocessor is busy in the first process.
#[test]
fn mps_shares_room_between_processes() {
    let test = "sharing::mps_shares_room_between_processes";
    let variables = [("CUDA_EMULATOR_MULTIPROCESSORS", "1")];
    each_way(test, "mps", &variables, |device, kept| {
        if let Some(memory) = opened(device) {
            let (found, stream) = (&words(device, 1)[0], stream(device));
            let arguments = Note { from: memory as *const AtomicU32, to: found, add: 1, unused: 0 };
            assert_eq!(launch(device, kernel(device, "note"), &arguments, stream), 0);
            println!("\nlaunched");
            assert_eq!(synchronize(device, stream), 0);
            return println!("\nfound {}", found.load(Ordering::SeqCst));
        }
        let (memory, stream) = (allocate(device, 64), stream(device));
        let set = |byte: u8| {
            let set = call!(device, cuMemsetD8Async(memory => u64, byte => u8, 4 => usize, stream => Handle));
            let expected: (c_int, c_int) = (0, 0);
            assert_eq!((set, synchronize(device, stream)), expected);
        };
        set(0);
        let spin = Spin::start(device);
        let mut second = start(device, test, memory);
        let mut told = BufReader::new(second.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(told.any(|line| line == "launched"), "the second process has failed");
        if kept {
            // Without the rule it would run meanwhile.
            std::thread::sleep(Duration::from_millis(50));
            set(1);
            spin.end();
            assert!(told.any(|line| line == format!("found {}", 0x0101_0102)), "it ran beside the other");
        } else {
            assert!(told.any(|line| line == "found 1"), "it waited for the other");
            spin.end();
        }
        assert!(second.wait().unwrap().success());
    });
}
