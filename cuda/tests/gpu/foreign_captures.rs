//! Captures of another library: memory in use stays in use, and the capture stays valid.

use crate::busy::Busy;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode as Mode};
use unisono_cuda::cudarc;
use unisono_cuda::device::Stream;

const COUNT: usize = 45_678;

#[test]
fn memory_in_use_is_kept_during_a_foreign_capture() {
    // In the mode global, calls of other tests would fail too.
    if !crate::is_alone("foreign_captures::memory_in_use_is_kept_during_a_foreign_capture") {
        return;
    }
    let Some(gpu) = crate::gpu() else { return };
    let [stream, theirs] = [0, 1].map(|_| gpu.stream().unwrap());
    let busy = Busy::new(&gpu, &stream);
    let used = gpu.alloc::<u8>(COUNT).unwrap();
    // Blocks for the allocations below, because a driver may wait for the kernel before it makes
    // more.
    let spare: Vec<_> = (0..4).map(|_| gpu.alloc::<u8>(COUNT).unwrap()).collect();
    let address = used.address();
    used.record_stream(&stream);
    theirs.cudarc().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    drop((used, spare));
    let given_away = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let allocate = |_| gpu.alloc::<u8>(COUNT).unwrap().address() == address;
            (0..1000).filter(|&turn| allocate(turn)).count()
        });
        other.join().unwrap()
    });
    let ended = theirs.cudarc().end_capture(CUgraphInstantiate_flags(0));
    busy.end(&stream);
    assert_eq!(given_away, 0, "memory is given away while a kernel uses it");
    assert!(ended.is_ok(), "allocations spoil the capture of another library: {:?}", ended.err());
    let again: Vec<_> = (0..8).map(|_| gpu.alloc::<u8>(COUNT).unwrap()).collect();
    assert!(again.iter().any(|buffer| buffer.address() == address), "memory is lost after its use");
}

#[test]
fn questions_spoil_no_foreign_capture() {
    // In the mode global, calls of other tests would fail too.
    if !crate::is_alone("foreign_captures::questions_spoil_no_foreign_capture") {
        return;
    }
    let Some(gpu) = crate::gpu() else { return };
    let [stream, theirs] = [0, 1].map(|_| gpu.stream().unwrap());
    let buffer = gpu.upload(&[7u8; 100]).unwrap();
    let event = stream.record().unwrap();
    theirs.cudarc().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    assert!(event.is_done().is_ok() && stream.is_idle().is_ok());
    event.synchronize().unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [7; 100]);
    stream.synchronize().unwrap();
    assert!(theirs.cudarc().end_capture(CUgraphInstantiate_flags(0)).is_ok());
}

/// A graph of another library keeps memory until it is destroyed, and no longer.
#[test]
fn foreign_graph_gives_memory_back() {
    let Some(gpu) = crate::gpu() else { return };
    const COUNT: usize = 56_789;
    let stream: Stream = gpu.stream().unwrap();
    let (source, mut target) = (gpu.upload(&[8u8; COUNT]).unwrap(), gpu.alloc::<u8>(COUNT).unwrap());
    stream.cudarc().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    stream.copy(&mut target, &source).unwrap();
    let graph = stream.cudarc().end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    let address = source.address();
    drop(source);
    let others: Vec<_> = (0..3).map(|_| gpu.alloc::<u8>(COUNT).unwrap()).collect();
    assert!(others.iter().all(|other| other.address() != address), "the graph reads it");
    graph.launch().unwrap();
    assert_eq!(target.to_vec(&stream).unwrap(), [8; COUNT]);
    drop((graph, others));
    // The driver may destroy the graph a moment after the call.
    let is_back = || {
        // All at once, because each would take the same free block after the other.
        let buffers: Vec<_> = (0..32).map(|_| gpu.alloc::<u8>(COUNT).unwrap()).collect();
        buffers.iter().any(|buffer| buffer.address() == address)
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_back() {
        assert!(std::time::Instant::now() < deadline, "the memory of a destroyed graph is lost");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
