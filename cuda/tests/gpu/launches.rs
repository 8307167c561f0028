//! Kernels: found, launched, refused; reductions are the host's.

use crate::busy::Busy;
use unisono_cuda::device::{Buffer, Gpu, GpuError, LaunchDims, Stream};
use unisono_reducers::{DType, Element, PostOp, ReduceKind, Scalar, as_bytes, as_bytes_mut, bf16};

/// Elements that differ, beginning with `first`.
fn elements<T: Element>(first: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_f64(((first + index) % 13) as f64)).collect()
}

fn on_host<T: Element>(op: ReduceKind, finish: PostOp, sources: &[Vec<T>]) -> Vec<T> {
    let mut target = vec![T::default(); sources[0].len()];
    let sources: Vec<_> = sources.iter().map(|source| as_bytes(source).into()).collect();
    unisono_reducers::reduce(T::DTYPE, op, finish, as_bytes_mut(&mut target).into(), &sources);
    target
}

fn expect_as_on_host<T: Element>(gpu: &Gpu, stream: &Stream) {
    for (op, finish) in [
        (ReduceKind::Sum, PostOp::Identity),
        (ReduceKind::Max, PostOp::Identity),
        (ReduceKind::Avg, PostOp::Divide(3)),
    ] {
        let sources: Vec<Vec<T>> = (1..4).map(|first| elements(first, 500)).collect();
        let expected = on_host(op, finish, &sources);
        let buffers: Vec<Buffer<T>> = sources.iter().map(|source| gpu.upload(source).unwrap()).collect();
        let mut targets = [gpu.alloc::<T>(500).unwrap(), gpu.alloc::<T>(510).unwrap()];
        let [left, right] = &mut targets;
        let views = buffers.iter().map(|buffer| buffer.view(..)).collect::<Vec<_>>();
        stream.reduce(op, finish, &mut [left.view_mut(..), right.view_mut(5..505)], &views).unwrap();
        assert_eq!(targets[0].to_vec(stream).unwrap(), expected, "{} {op}", T::DTYPE);
        assert_eq!(targets[1].view(5..505).to_vec(stream).unwrap(), expected);
        let [mut first, second, third] = <[Buffer<T>; 3]>::try_from(buffers).ok().unwrap();
        stream
            .reduce_assign(op, finish, &mut first.view_mut(..), &[second.view(..), third.view(..)])
            .unwrap();
        assert_eq!(first.to_vec(stream).unwrap(), expected);
    }
}

#[test]
fn reductions_are_as_on_the_host() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    expect_as_on_host::<f32>(&gpu, &stream);
    expect_as_on_host::<bf16>(&gpu, &stream);
    expect_as_on_host::<i64>(&gpu, &stream);
    let mut target = gpu.alloc::<i32>(3).unwrap();
    let [left, right] = [[1, 2, 3], [10, 20, 30]].map(|values| gpu.upload(&values).unwrap());
    let factors = [Scalar::Int(-1), Scalar::Float(2.9)];
    stream.reduce_scaled(&factors, &mut [target.view_mut(..)], &[left.view(..), right.view(..)]).unwrap();
    assert_eq!(target.to_vec(&stream).unwrap(), [19, 38, 57]);
}

/// To load one later, the driver may wait for all that runs.
#[test]
fn kernels_are_loaded_before_others_wait() {
    let Some(gpu) = crate::gpu() else { return };
    let [stream, other] = [0, 1].map(|_| gpu.stream().unwrap());
    let busy = Busy::new(&gpu, &stream);
    let (mut target, source) = (other.alloc::<u64>(4).unwrap(), other.alloc::<u64>(4).unwrap());
    other.reduce(ReduceKind::Min, PostOp::Identity, &mut [target.view_mut(..)], &[source.view(..)]).unwrap();
    other.synchronize().unwrap();
    busy.end(&stream);
}

#[test]
fn launch_invalid_arguments_are_refused() {
    let Some(gpu) = crate::gpu() else { return };
    let stream = gpu.stream().unwrap();
    let (mut target, source) = (gpu.alloc::<f32>(4).unwrap(), gpu.alloc::<f32>(5).unwrap());
    let mut reduce =
        |op, finish, sources: &[_]| stream.reduce(op, finish, &mut [target.view_mut(..)], sources);
    let length = reduce(ReduceKind::Sum, PostOp::Identity, &[source.view(..)]);
    assert_eq!(length, Err(GpuError::LengthMismatch { found: 5, wanted: 4 }));
    assert_eq!(
        reduce(ReduceKind::Sum, PostOp::Identity, &[]),
        Err(GpuError::OperandCount { sources: 0, targets: 1 })
    );
    assert_eq!(
        reduce(ReduceKind::Sum, PostOp::Identity, &[source.view(..4); 17]),
        Err(GpuError::OperandCount { sources: 17, targets: 1 })
    );
    let sense = |error: Result<(), GpuError>| {
        assert!(matches!(error, Err(GpuError::InvalidReduction(_))), "{error:?}")
    };
    sense(reduce(ReduceKind::Max, PostOp::Divide(2), &[source.view(..4)]));
    sense(reduce(ReduceKind::Avg, PostOp::Divide(0), &[source.view(..4)]));
    sense(reduce(ReduceKind::PreMulSum, PostOp::Identity, &[source.view(..4)]));
    let Some(other) = crate::other_gpu() else { return };
    let other = other.alloc::<f32>(4).unwrap();
    let refused = reduce(ReduceKind::Sum, PostOp::Identity, &[other.view(..)]);
    assert_eq!(refused, Err(GpuError::WrongGpu { what: "memory", owner: 1, user: 0 }));
}

#[test]
fn kernels_are_found_by_name() {
    let Some(gpu) = crate::gpu() else { return };
    for dtype in DType::ON_GPU {
        let name = format!("reduce_copy_{dtype}_sum");
        assert_eq!(gpu.kernel(&name).unwrap().name(), name);
    }
    let absent = gpu.kernel("nobody").err();
    assert_eq!(absent, Some(GpuError::NoKernel { name: "nobody".to_owned() }));
}

#[test]
fn blocks_that_wait_for_each_other_must_fit() {
    let Some(gpu) = crate::gpu() else { return };
    let (stream, kernel) = (gpu.stream().unwrap(), gpu.kernel("exchange").unwrap());
    let room = kernel.max_resident_blocks(32).unwrap();
    assert!(room == 64 || !gpu.is_emulated(), "{room}");
    let (blocks, threads) = (room + 1, 32);
    let shape = LaunchDims { blocks, threads, cooperative: true };
    // SAFETY: it is refused before it could run.
    let refused = unsafe { kernel.launch(&stream, shape, &[0u64; 4]) }.unwrap_err();
    assert_eq!(refused, GpuError::TooManyBlocks { kernel: "exchange", blocks, threads, room });
    let Some(other) = crate::other_gpu() else { return };
    let elsewhere = other.stream().unwrap();
    // SAFETY: as above.
    let refused = unsafe { kernel.launch(&elsewhere, shape, &[0u64; 4]) }.unwrap_err();
    assert_eq!(refused, GpuError::WrongGpu { what: "a kernel", owner: 0, user: 1 });
}

#[test]
fn two_streams_run_at_once() {
    let Some(gpu) = crate::gpu() else { return };
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    let busy = streams.each_ref().map(|stream| Busy::new(&gpu, stream));
    busy[1].end(&streams[1]);
    assert!(!streams[0].is_idle().unwrap());
    busy[0].end(&streams[0]);
}
