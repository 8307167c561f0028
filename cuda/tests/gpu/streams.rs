//! Streams and events: order within, order between, and time.

use crate::busy::Busy;
use unisono_cuda::device::{Gpu, GpuError};
use unisono_cuda::emulator::set_max_resident_blocks;
use unisono_reducers::{PostOp, ReduceKind};

#[test]
fn a_stream_does_one_thing_after_the_other() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut here = gpu.alloc::<u32>(64).unwrap();
    let [first, second] = [1u32, 2].map(|fill| gpu.upload(&[fill; 64]).unwrap());
    let busy = Busy::new(&gpu, &stream);
    stream.copy(&mut here, &first).unwrap();
    stream.copy(&mut here, &second).unwrap();
    assert!(!stream.is_idle().unwrap());
    drop(second);
    busy.end(&stream);
    assert!(stream.is_idle().unwrap());
    assert_eq!(here.to_vec(&stream).unwrap(), [2; 64]);
}

#[test]
fn events_order_streams() {
    let Some(gpu) = crate::gpu() else { return };
    let [first, second] = [(); 2].map(|()| gpu.stream().unwrap());
    let [mut here, mut there] = [(); 2].map(|()| gpu.alloc::<u32>(1000).unwrap());
    let source = gpu.upload(&[5u32; 1000]).unwrap();
    let start = first.record().unwrap();
    start.synchronize().unwrap();
    let busy = Busy::new(&gpu, &first);
    first.copy(&mut here, &source).unwrap();
    let copied = first.record().unwrap();
    second.wait(&copied).unwrap();
    second.copy(&mut there, &here).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!copied.is_done().unwrap() && !second.is_idle().unwrap(), "a stream runs ahead of an event");
    busy.end(&first);
    copied.synchronize().unwrap();
    assert!(copied.is_done().unwrap());
    assert_eq!(there.to_vec(&second).unwrap(), [5; 1000]);
    let elapsed = start.elapsed_ms(&copied).unwrap();
    assert!((19.0..60_000.0).contains(&elapsed), "{elapsed} ms");
}

#[test]
fn an_event_is_of_one_gpu() {
    let Some(gpu) = crate::gpu() else { return };
    let Some(other) = crate::other_gpu() else { return };
    let event = gpu.stream().unwrap().record().unwrap();
    let stream = other.stream().unwrap();
    assert_eq!(event.record(&stream), Err(GpuError::WrongGpu { what: "an event", owner: 0, user: 1 }));
    stream.wait(&event).unwrap();
    stream.synchronize().unwrap();
}

/// Tells a process that it runs nothing else.
const ALONE: &str = "UNISONO_TEST_STREAMS_ALONE";

#[test]
fn high_priority_stream_runs_first() {
    if crate::gpu().is_none_or(|gpu| !gpu.is_emulated()) {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        let process = process.args(["streams::high_priority_stream_runs_first", "--exact"]).env(ALONE, "1");
        assert!(process.status().unwrap().success());
        return;
    }
    set_max_resident_blocks(1).unwrap();
    let gpu = Gpu::open(0).unwrap();
    let [first, plain] = [(); 2].map(|()| gpu.stream().unwrap());
    let urgent = gpu.high_priority_stream().unwrap();
    // Long enough that the first one to finish is recorded before the other is done.
    let (mut target, source) = (gpu.alloc::<i32>(1 << 22).unwrap(), gpu.alloc::<i32>(1 << 22).unwrap());
    let busy = Busy::new(&gpu, &first);
    busy.begun(&plain);
    let [last, sooner] = [&plain, &urgent].map(|stream| {
        let targets = &mut [target.view_mut(..)];
        stream.reduce(ReduceKind::Sum, PostOp::Identity, targets, &[source.view(..)]).unwrap();
        // Both wait for room: on a busy machine that takes a while.
        std::thread::sleep(std::time::Duration::from_millis(300));
        stream.record().unwrap()
    });
    busy.end(&first);
    assert!(sooner.elapsed_ms(&last).unwrap() > 0.0, "what came first went first");
}
