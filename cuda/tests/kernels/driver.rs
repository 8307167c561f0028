//! The emulator through the functions of libcuda, as a program uses a GPU.

use crate::emulator::Device;
use crate::libcuda::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;
use unisono_cuda::device::{WaitReport, WaitState};

fn exchange(device: &Device, kernel: Handle, limit: Duration) -> [WaitReport; 2] {
    let ranks = [Rank::new(device, 3), Rank::new(device, 7)];
    ranks[0].start(device, kernel, ranks[1].shared, 0, limit);
    ranks[1].start(device, kernel, ranks[0].shared, 1, limit);
    let statuses = [ranks[0].status(device), ranks[1].status(device)];
    if statuses.iter().all(|status| status.state() == Some(WaitState::Ok)) {
        assert_eq!(download(device, ranks[0].output, &0u8, BYTES, ranks[0].stream), [7; BYTES]);
        assert_eq!(download(device, ranks[1].output, &0u8, BYTES, ranks[1].stream), [3; BYTES]);
    }
    ranks.into_iter().for_each(|rank| rank.end(device));
    statuses
}

#[test]
fn two_streams_are_two_ranks() {
    let Some(device) = Device::new("driver.so", &["kernels/exchange.cu", "tests/kernels/astray.cu"]) else {
        return;
    };
    assert_eq!(call!(device, cuInit(0 => u32)), 0);
    let module = module(&device, unisono_kernels::module("exchange").unwrap().text).unwrap();
    let kernel = function(&device, module, "exchange").unwrap();
    let statuses = exchange(&device, kernel, Duration::from_secs(60));
    assert!(statuses.iter().all(|status| status.state() == Some(WaitState::Ok)), "{statuses:?}");
    without_room_for_both(&device, kernel);
    events_order_streams(&device);
    mistakes_are_errors(&device, module);
}

/// The second kernel cannot start before the first has ended. The first gives up, and reports the
/// rank it waited for.
fn without_room_for_both(device: &Device, kernel: Handle) {
    device.set_residents(1);
    let statuses = exchange(device, kernel, Duration::from_millis(100));
    let names_the_other = |status: &WaitReport| {
        status.state() == Some(WaitState::TimedOut)
            && (status.peer, status.step, status.seen) == (1 - status.rank, 0, 0)
    };
    assert!(statuses.iter().any(names_the_other), "{statuses:?}");
    device.set_residents(64);
}

fn events_order_streams(device: &Device) {
    let (first, second, memory) = (stream(device), stream(device), allocate(device, 1 << 20));
    let mut event = null_mut();
    assert_eq!(call!(device, cuEventCreate(&mut event => *mut Handle, 2 => u32)), 0);
    for byte in [1u8, 2, 3] {
        let set =
            call!(device, cuMemsetD8Async(memory => u64, byte => u8, 1 << 20 => usize, first => Handle));
        let recorded = call!(device, cuEventRecord(event => Handle, first => Handle));
        let waits = call!(device, cuStreamWaitEvent(second => Handle, event => Handle, 0 => u32));
        assert_eq!((set, recorded, waits), (0, 0, 0));
        assert!(download(device, memory, &0u8, 1 << 20, second).iter().all(|&found| found == byte));
    }
    assert_eq!(call!(device, cuEventSynchronize(event => Handle)), 0);
    assert_eq!(call!(device, cuEventQuery(event => Handle)), 0);
    assert_eq!(call!(device, cuMemFree_v2(memory => u64)), 0);
    assert_eq!(call!(device, cuEventDestroy_v2(event => Handle)), 0);
    [first, second].into_iter().for_each(|stream| destroy(device, stream));
}

fn mistakes_are_errors(device: &Device, exchange: Handle) {
    let (invalid_image, invalid_handle, not_found, launch_failed) = (200, 400, 500, 719);
    assert_eq!(
        module(device, unisono_kernels::module("reduce_copy_half").unwrap().text),
        Err(invalid_image),
        "not linked"
    );
    assert_eq!(module(device, "no kernels"), Err(invalid_image));
    assert_eq!(function(device, exchange, "one_leaves"), Err(not_found), "in another module");
    let astray = module(device, ".visible .entry one_leaves(\n").unwrap();
    let kernel = function(device, astray, "one_leaves").unwrap();
    assert_eq!(launch(device, kernel, &[0u32; 4], null_mut()), invalid_handle, "there is no default stream");
    let stream = stream(device);
    assert_eq!(launch(device, kernel, &[0u32; 4], stream), 0);
    assert_eq!(synchronize(device, stream), launch_failed);
    assert_eq!(call!(device, cuStreamDestroy_v2(stream => Handle)), launch_failed, "the context is lost");
}
