//! Graphs: recorded once, run again and again.

use unisono_cuda::device::{Buffer, Gpu, GpuError, Graph, Stream};
use unisono_reducers::{PostOp, ReduceKind};

fn doubling(gpu: &Gpu, stream: &Stream, target: &mut Buffer<i32>) -> Graph {
    let ones = gpu.upload(&[1i32; 100]).unwrap();
    let graph = stream.capture(|stream| {
        let same = gpu.upload(&[0i32; 100])?;
        stream.reduce_assign(
            ReduceKind::Sum,
            PostOp::Identity,
            &mut target.view_mut(..),
            &[same.view(..), ones.view(..)],
        )
    });
    graph.unwrap()
}

#[test]
fn a_graph_runs_again_with_memory_that_it_keeps() {
    let Some(gpu) = crate::gpu() else { return };
    let (stream, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut target = gpu.alloc::<i32>(100).unwrap();
    // Two of the graph's three buffers are dropped before it first runs.
    let graph = doubling(&gpu, &stream, &mut target);
    assert_eq!(target.to_vec(&stream).unwrap(), [0; 100], "recorded work has run");
    let _takes_what_is_free: Vec<_> = (0..4).map(|_| gpu.upload(&[50i32; 100]).unwrap()).collect();
    for _ in 0..3 {
        graph.launch(&stream).unwrap();
    }
    assert_eq!(target.to_vec(&stream).unwrap(), [3; 100]);
    graph.launch(&other).unwrap();
    drop(graph);
    assert_eq!(target.to_vec(&other).unwrap(), [4; 100]);
}

#[test]
fn capture_of_waits_and_copies_is_refused() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let mut buffer = gpu.alloc::<u8>(8).unwrap();
    let capturing = |error: GpuError| assert!(matches!(error, GpuError::Capturing { .. }), "{error}");
    let graph = stream.capture(|stream| {
        capturing(buffer.to_vec(stream).unwrap_err());
        capturing(buffer.write(stream, &[1; 8]).unwrap_err());
        capturing(stream.synchronize().unwrap_err());
        capturing(stream.is_idle().unwrap_err());
        capturing(stream.capture(|_| Ok::<_, GpuError>(())).err().unwrap());
        Ok::<_, GpuError>(())
    });
    let graph = graph.unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0; 8]);
    let Some(other) = crate::other_gpu() else { return };
    let elsewhere = other.stream().unwrap();
    assert_eq!(graph.launch(&elsewhere), Err(GpuError::WrongGpu { what: "a graph", owner: 0, user: 1 }));
}

#[test]
fn a_stream_goes_on_after_a_capture_that_failed() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let failed = stream.capture(|_| Err::<(), _>(GpuError::ExportFreed));
    assert_eq!(failed.err(), Some(GpuError::ExportFreed));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.capture(|_| -> Result<(), GpuError> { panic!("within a capture") }).map(|_| ())
    }));
    assert!(panicked.is_err());
    assert_eq!(gpu.upload(&[4u8]).unwrap().to_vec(&stream).unwrap(), [4]);
}
