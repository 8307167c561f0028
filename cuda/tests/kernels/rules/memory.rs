//! Allocations that share a block, peer access, alignment, and errors that stay.

use super::world::{Note, each_way, kernel, with, words};
use crate::emulator::Device;
use crate::libcuda::*;
use std::ffi::c_int;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

const INVALID_VALUE: c_int = 1;
const ILLEGAL_ADDRESS: c_int = 700;
const MISALIGNED_ADDRESS: c_int = 716;

/// `CUipcMemHandle`.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct MemoryHandle([u8; 64]);

fn handle(device: &Device, memory: u64) -> MemoryHandle {
    let mut handle = MemoryHandle([0; 64]);
    assert_eq!(call!(device, cuIpcGetMemHandle(&mut handle => *mut MemoryHandle, memory => u64)), 0);
    handle
}

/// The handle of another process, and what lies before and in the memory there.
const HANDLE: &str = "RULE_TEST_HANDLE";
const BLOCK: u64 = 2 << 20;

/// Opens memory of another process. Returns its address, its range, and its first byte.
fn opened(device: &Device, digits: &str) -> (u64, u64, usize) {
    let byte = |index: usize| u8::from_str_radix(&digits[2 * index..][..2], 16).unwrap();
    let handle = MemoryHandle(std::array::from_fn(byte));
    let (mut memory, mut start, mut bytes) = (0, 0, 0);
    let open =
        call!(device, cuIpcOpenMemHandle_v2(&mut memory => *mut u64, handle => MemoryHandle, 1 => u32));
    let range = call!(device, cuMemGetAddressRange_v2(&mut start => *mut u64, &mut bytes => *mut usize, memory => u64));
    assert_eq!((open, range, start), (0, 0, memory));
    (memory, start, bytes)
}

/// Runs this test again as another process that opens `memory`.
fn open_elsewhere(device: &Device, test: &str, memory: u64) {
    let digits = handle(device, memory).0.map(|byte| format!("{byte:02x}")).concat();
    let mut other = Command::new(std::env::current_exe().unwrap());
    let output = other.args([test, "--exact"]).env(HANDLE, digits).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Memory of the process that exports lies 4 KiB apart; the other one reads what lies before it.
#[test]
fn small_allocations_share_an_exported_block() {
    let test = "memory::small_allocations_share_an_exported_block";
    each_way(test, "suballocate", &[], |device, kept| {
        if let Ok(digits) = std::env::var(HANDLE) {
            let (memory, _, bytes) = opened(device, &digits);
            assert_eq!(bytes, 100);
            if kept {
                // SAFETY: the block is mapped as a whole, and the neighbor is in it.
                assert_eq!(unsafe { ((memory - 4096) as *const u8).read() }, 77, "the neighbor's data");
            }
            return;
        }
        let (stream, [first, second]) = (stream(device), [(); 2].map(|()| allocate(device, 100)));
        upload(device, first, &[77u8; 100], stream);
        if kept {
            assert_eq!(second - first, 4096);
        }
        assert_eq!(handle(device, first).0[..24] == handle(device, second).0[..24], kept, "one block");
        open_elsewhere(device, &format!("rules::{test}"), second);
        for memory in [first, second] {
            assert_eq!(call!(device, cuMemFree_v2(memory => u64)), 0);
        }
    });
}

#[test]
fn opened_handle_is_the_block_by_rule() {
    let test = "memory::opened_handle_is_the_block_by_rule";
    each_way(test, "suballocate,ipc-block-base", &[], |device, kept| {
        if let Ok(digits) = std::env::var(HANDLE) {
            let (_, _, bytes) = opened(device, &digits);
            return assert_eq!(bytes as u64, if kept { BLOCK } else { 100 });
        }
        open_elsewhere(device, &format!("rules::{test}"), allocate(device, 100));
    });
}

/// The allocation at the end of a block has a guard too.
#[test]
fn guards_of_small_allocations_are_checked() {
    with("memory::guards_of_small_allocations_are_checked", &[], |device| {
        let stream = stream(device);
        let allocations: Vec<u64> = (0..600).map(|_| allocate(device, 4096 - 512)).collect();
        for (index, &memory) in allocations.iter().enumerate() {
            let bytes = 4096 - 512 + usize::from(index % 5 == 0);
            let set =
                call!(device, cuMemsetD8Async(memory => u64, 1 => u8, bytes => usize, stream => Handle));
            assert_eq!((set, synchronize(device, stream)), (0, 0));
        }
        for (index, memory) in allocations.into_iter().enumerate() {
            let expected = if index % 5 == 0 { INVALID_VALUE } else { 0 };
            assert_eq!(call!(device, cuMemFree_v2(memory => u64)), expected, "allocation {index}");
        }
    });
}

fn use_gpu(device: &Device, gpu: c_int) -> Handle {
    let mut context = null_mut();
    let retained = call!(device, cuDevicePrimaryCtxRetain(&mut context => *mut Handle, gpu => c_int));
    assert_eq!((retained, call!(device, cuCtxSetCurrent(context => Handle))), (0, 0));
    context
}

#[test]
fn memory_of_another_gpu_needs_peer_access() {
    let test = "memory::memory_of_another_gpu_needs_peer_access";
    each_way(test, "peer-access", &[("CUDA_EMULATOR_GPUS", "2")], |device, kept| {
        let other = use_gpu(device, 1);
        let remote = allocate(device, 64);
        use_gpu(device, 0);
        let (local, stream) = (allocate(device, 64), stream(device));
        let copy = || {
            call!(device, cuMemcpyDtoDAsync_v2(
                local => u64, remote => u64, 64 => usize, stream => Handle
            ))
        };
        assert_eq!(copy(), if kept { INVALID_VALUE } else { 0 });
        assert_eq!(call!(device, cuCtxEnablePeerAccess(other => Handle, 0 => u32)), 0);
        assert_eq!(copy(), 0);
        let arguments =
            Note { from: remote as *const AtomicU32, to: local as *const AtomicU32, add: 1, unused: 0 };
        assert_eq!(launch(device, kernel(device, "note"), &arguments, stream), 0);
        assert_eq!(synchronize(device, stream), 0);
        assert_eq!(call!(device, cuCtxDisablePeerAccess(other => Handle)), 0);
        assert_eq!(launch(device, kernel(device, "note"), &arguments, stream), 0);
        assert_eq!(synchronize(device, stream), if kept { ILLEGAL_ADDRESS } else { 0 });
    });
}

/// Launches a kernel that reads 4 bytes at a word plus this many bytes.
fn read_at(device: &Device, offset: usize) -> c_int {
    let (stream, words) = (stream(device), words(device, 4));
    let source = words.as_ptr().wrapping_byte_add(offset);
    let arguments = Note { from: source, to: &raw const words[3], add: 1, unused: 0 };
    assert_eq!(launch(device, kernel(device, "note"), &arguments, stream), 0);
    synchronize(device, stream)
}

#[test]
fn misaligned_access_fails_by_rule() {
    each_way("memory::misaligned_access_fails_by_rule", "misaligned", &[], |device, kept| {
        assert_eq!(read_at(device, 4), 0);
        assert_eq!(read_at(device, 2), if kept { MISALIGNED_ADDRESS } else { 0 });
        assert_eq!(read_at(device, 4), 0, "errors of other streams do not stay without their rule");
    });
}

#[test]
fn errors_of_kernels_stay_by_rule() {
    let test = "memory::errors_of_kernels_stay_by_rule";
    // Without the rule, later calls succeed, as the test before says.
    with(test, &[("CUDA_EMULATOR_RULES", "none,misaligned,sticky-errors")], |device| {
        assert_eq!(read_at(device, 2), MISALIGNED_ADDRESS);
        let mut memory = 0;
        let mut alloc = || call!(device, cuMemAlloc_v2(&mut memory => *mut u64, 64 => usize));
        assert_eq!((alloc(), call!(device, cuCtxSynchronize())), (MISALIGNED_ADDRESS, MISALIGNED_ADDRESS));
        assert_eq!((call!(device, cuDevicePrimaryCtxReset_v2(0 => c_int)), alloc()), (0, 0));
    });
}

#[test]
fn use_after_free_ends_the_process() {
    with("memory::use_after_free_ends_the_process", &[], |device| {
        if std::env::var_os(HANDLE).is_none() {
            let mut other = Command::new(std::env::current_exe().unwrap());
            let name = "rules::memory::use_after_free_ends_the_process";
            let output = other.args([name, "--exact", "--nocapture"]).env(HANDLE, "read").output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("reads freed memory"));
            return assert!(!output.status.success());
        }
        let [_keeps_the_block, freed] = [(); 2].map(|()| allocate(device, 64));
        assert_eq!(call!(device, cuMemFree_v2(freed => u64)), 0);
        println!("reads freed memory");
        // SAFETY: the process ends here.
        println!("{}", unsafe { (freed as *const u8).read_volatile() });
    });
}
