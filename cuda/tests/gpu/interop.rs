//! Memory and streams of cudarc's.

use crate::busy::Busy;
use std::time::Duration;
use unisono_cuda::cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use unisono_cuda::cudarc::driver::{CudaContext, DriverError};
use unisono_cuda::device::{DeviceBuffer, DeviceBufferMut, GpuError, Stream};

#[test]
fn cudarc_s_memory_is_memory() {
    let Some(gpu) = crate::gpu() else { return };
    // A stream of a program that does not know unisono.
    let theirs = CudaContext::new(0).unwrap().new_stream().unwrap();
    let ours = gpu.stream().unwrap();
    let mut buffer = gpu.alloc::<f32>(100).unwrap();
    let mut slice = theirs.clone_htod(&[3.0f32; 100]).unwrap();
    let busy = Busy::new(&gpu, &ours);
    ours.copy(&mut buffer, &slice).unwrap();
    ours.copy(&mut slice.slice_mut(50..), &buffer.view(..50)).unwrap();
    // Their stream waits for ours, so that they may read or drop what we use.
    let event = theirs.record_event(None).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!event.is_complete(), "they could drop what we use");
    drop(buffer);
    busy.end(&ours);
    assert_eq!(theirs.clone_dtoh(&slice).unwrap(), [3.0; 100]);
    let view = slice.slice(10..20);
    assert_eq!((DeviceBuffer::len(&view), view.address()), (10, DeviceBuffer::address(&slice) + 40));
}

#[test]
fn cudarc_stream_work_comes_first() {
    let Some(gpu) = crate::gpu() else { return };
    let theirs = CudaContext::new(0).unwrap().new_stream().unwrap();
    let (same, ours) = (Stream::from_cudarc(&gpu, theirs.clone()).unwrap(), gpu.stream().unwrap());
    let mut slice = theirs.clone_htod(&[3u8; 100]).unwrap();
    let mut buffer = gpu.alloc::<u8>(100).unwrap();
    let busy = Busy::new(&gpu, &same);
    theirs.memset_zeros(&mut slice).unwrap();
    ours.copy(&mut buffer, &slice).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!ours.is_idle().unwrap(), "we read what they have yet to write");
    busy.end(&same);
    assert_eq!(buffer.to_vec(&ours).unwrap(), [0; 100]);
}

#[test]
fn a_stream_of_cudarc_s_is_a_stream() {
    let Some(gpu) = crate::gpu() else { return };
    let context = CudaContext::new(0).unwrap();
    let stream = Stream::from_cudarc(&gpu, context.new_stream().unwrap()).unwrap();
    let mut slice = stream.cudarc().alloc_zeros::<u8>(10).unwrap();
    let writes: &mut dyn DeviceBufferMut<u8> = &mut slice;
    stream.copy(writes, &gpu.upload(&[6u8; 10]).unwrap()).unwrap();
    assert_eq!(stream.cudarc().clone_dtoh(&slice).unwrap(), [6; 10]);
    let Some(other) = crate::other_gpu() else { return };
    let elsewhere = CudaContext::new(other.ordinal()).unwrap().new_stream().unwrap();
    let refused = Stream::from_cudarc(&gpu, elsewhere.clone()).err();
    assert_eq!(refused, Some(GpuError::WrongGpu { what: "a stream", owner: 1, user: 0 }));
    let other = elsewhere.alloc_zeros::<u8>(10).unwrap();
    let refused = stream.copy(&mut slice, &other).unwrap_err();
    assert_eq!(refused, GpuError::WrongGpu { what: "memory", owner: 1, user: 0 });
}

/// cudarc keeps errors of its own calls that return none, for its next call of any thread.
#[test]
fn errors_of_cudarc_reach_callers_of_cudarc() {
    // Calls of other tests would take the error.
    if !crate::is_alone("interop::errors_of_cudarc_reach_callers_of_cudarc") {
        return;
    }
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let kept = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
    gpu.context().record_err::<()>(Err(DriverError(kept)));
    let mut buffer = gpu.upload(&[3u32; 10]).unwrap();
    stream.copy(&mut buffer, &gpu.alloc::<u32>(10).unwrap()).unwrap();
    let event = stream.record().unwrap();
    stream.wait(&event).unwrap();
    event.synchronize().unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0; 10]);
    assert!(gpu.memory().is_ok() && gpu.multiprocessors().is_ok() && gpu.release_unused().is_ok());
    drop((buffer, event));
    assert_eq!(gpu.context().check_err(), Err(DriverError(kept)), "another call has taken the error");
}

#[test]
fn a_graph_cannot_keep_cudarc_s_memory() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let slice = stream.cudarc().alloc_zeros::<u8>(10).unwrap();
    let mut buffer = gpu.alloc::<u8>(10).unwrap();
    let refused = stream.capture(|stream| stream.copy(&mut buffer, &slice)).err();
    assert!(matches!(refused, Some(GpuError::Capturing { .. })), "{refused:?}");
}

#[test]
fn cudarc_capture_keeps_memory() {
    let Some(gpu) = crate::gpu() else { return };
    const COUNT: usize = 34567;
    let stream = gpu.stream().unwrap();
    let (source, mut target) = (gpu.upload(&[8u8; COUNT]).unwrap(), gpu.alloc::<u8>(COUNT).unwrap());
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.cudarc().begin_capture(mode).unwrap();
    stream.copy(&mut target, &source).unwrap();
    let graph = stream.cudarc().end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    let address = source.address();
    drop(source);
    let others = [(); 3].map(|()| gpu.alloc::<u8>(COUNT).unwrap());
    assert!(others.iter().all(|other| other.address() != address), "cudarc's graph reads it");
    graph.launch().unwrap();
    assert_eq!(target.to_vec(&stream).unwrap(), [8; COUNT]);
}
