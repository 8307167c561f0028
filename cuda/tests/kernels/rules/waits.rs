//! Calls that wait for running kernels, and work that waits for other work.

use super::world::{Note, Spin, each_way, kernel, words};
use crate::emulator::Device;
use crate::libcuda::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Makes a call while a kernel runs, with the rule and without.
fn waits(test: &str, rule: &str, call: impl Fn(&Device, u64) -> c_int + Copy + Send + Sync) {
    each_way(&format!("waits::{test}"), rule, &[], |device, kept| {
        let memory = allocate(device, 64);
        let spin = Spin::start(device);
        spin.expect(kept, || assert_eq!(call(device, memory), 0));
    });
}

#[test]
fn alloc_waits_for_running_kernels_by_rule() {
    waits(
        "alloc_waits_for_running_kernels_by_rule",
        "alloc-waits",
        |device, _| call!(device, cuMemAlloc_v2(&mut 0 => *mut u64, 64 => usize)),
    );
}

#[test]
fn pinned_alloc_waits_for_running_kernels_by_rule() {
    waits(
        "pinned_alloc_waits_for_running_kernels_by_rule",
        "pinned-alloc-waits",
        |device, _| call!(device, cuMemHostAlloc(&mut null_mut() => *mut Handle, 64 => usize, 0 => u32)),
    );
}

#[test]
fn free_waits_for_running_kernels_by_rule() {
    waits(
        "free_waits_for_running_kernels_by_rule",
        "free-waits",
        |device, memory| call!(device, cuMemFree_v2(memory => u64)),
    );
}

#[test]
fn pageable_copy_waits_for_running_kernels_by_rule() {
    waits("pageable_copy_waits_for_running_kernels_by_rule", "pageable-copy-waits", |device, memory| {
        let stream = stream(device);
        let source = [1u8; 64].as_ptr().cast::<c_void>();
        call!(device, cuMemcpyHtoDAsync_v2(
            memory => u64, source => *const c_void, 64 => usize, stream => Handle
        ))
    });
}

#[test]
fn module_load_waits_for_running_kernels_by_rule() {
    waits("module_load_waits_for_running_kernels_by_rule", "module-load-waits", |device, _| {
        kernel(device, "note");
        0
    });
}

#[test]
fn pinned_copy_does_not_wait() {
    let variables = [("CUDA_EMULATOR_RULES", "all")];
    super::world::with("waits::pinned_copy_does_not_wait", &variables, |device| {
        let (memory, source, other) = (allocate(device, 64), words(device, 16), stream(device));
        let spin = Spin::start(device);
        let source = source.as_ptr().cast::<c_void>();
        let copy = call!(device, cuMemcpyHtoDAsync_v2(
            memory => u64, source => *const c_void, 64 => usize, other => Handle
        ));
        assert_eq!((copy, spin.has_ended()), (0, false));
        spin.end();
        assert_eq!(synchronize(device, spin.stream), 0);
    });
}

/// Two streams share the one queue. Behind the running kernel, the first has another one at the
/// head of the queue.
#[test]
fn hardware_queue_head_blocks_other_streams() {
    let (test, queues) =
        ("waits::hardware_queue_head_blocks_other_streams", ("CUDA_DEVICE_MAX_CONNECTIONS", "1"));
    each_way(test, "hardware-queues", &[queues], |device, kept| {
        let (note, found, other) = (kernel(device, "note"), words(device, 1), stream(device));
        let spin = Spin::start(device);
        assert_eq!(spin.launch(spin.stream), 0);
        let arguments = Note { from: spin.ended(), to: &raw const found[0], add: 1, unused: 0 };
        assert_eq!(launch(device, note, &arguments, other), 0);
        if kept {
            // Without the rule it would run meanwhile.
            std::thread::sleep(Duration::from_millis(30));
            spin.end();
        }
        assert_eq!(synchronize(device, other), 0);
        assert_eq!(found[0].load(Ordering::SeqCst), if kept { 2 } else { 1 });
        spin.end();
        assert_eq!(synchronize(device, spin.stream), 0);
    });
}

#[test]
fn running_kernel_does_not_block_its_hardware_queue() {
    let settings = [("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("CUDA_EMULATOR_RULES", "none,hardware-queues")];
    super::world::with("waits::running_kernel_does_not_block_its_hardware_queue", &settings, |device| {
        let (note, found, other) = (kernel(device, "note"), words(device, 1), stream(device));
        let spin = Spin::start(device);
        let arguments = Note { from: spin.ended(), to: &raw const found[0], add: 1, unused: 0 };
        assert_eq!(launch(device, note, &arguments, other), 0);
        assert_eq!((synchronize(device, other), found[0].load(Ordering::SeqCst)), (0, 1));
        spin.end();
        assert_eq!(synchronize(device, spin.stream), 0);
    });
}

#[test]
fn launch_that_waits_for_room_blocks_other_calls() {
    let test = "waits::launch_that_waits_for_room_blocks_other_calls";
    each_way(test, "context-lock", &[], |device, kept| {
        // SAFETY: the type is that of `emulator.h`.
        unsafe { device.symbol::<unsafe extern "C" fn(u32)>("unisono_set_stream_capacity")(1) };
        let mut event = null_mut();
        assert_eq!(call!(device, cuEventCreate(&mut event => *mut Handle, 2 => u32)), 0);
        let (spin, event) = (Spin::start(device), event.addr());
        // One launch waits behind the running kernel, and the next one waits for room.
        assert_eq!(spin.launch(spin.stream), 0);
        std::thread::scope(|scope| {
            let full = scope.spawn(|| spin.launch(spin.stream));
            std::thread::sleep(Duration::from_millis(30));
            spin.expect(kept, || {
                let event = std::ptr::without_provenance_mut::<c_void>(event);
                assert_eq!(call!(device, cuEventQuery(event => Handle)), 0);
            });
            assert_eq!(full.join().unwrap(), 0);
        });
    });
}
