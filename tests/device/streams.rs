//! Operations and streams: order, graphs, several communicators, several GPUs.

use crate::world::{config, gpu, run, run_in_own_process, staged_config};
use std::sync::atomic::Ordering;
use unisono::device::Gpu;
use unisono::schedule::Collective;
use unisono::{Communicator, Max, Sum};
use unisono_cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use unisono_cuda::emulator;
use unisono_cuda::test_gpu::{other_gpu, test_gpu};

#[test]
fn a_graph_repeats_an_operation() {
    for name in ["ring", "twoshot"] {
        run(2, &config(), |comm, stream| {
            comm.set_algorithm(Collective::AllReduce, Some(name)).unwrap();
            let mut values = comm.gpu().upload(&[1.0f32; 2000]).unwrap();
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            comm.synchronize(&stream).unwrap();
            let graph = stream.capture(|stream| comm.all_reduce(stream, &mut values, Sum));
            let graph = graph.unwrap();
            for _ in 0..3 {
                graph.launch(&stream).unwrap();
            }
            comm.synchronize(&stream).unwrap();
            assert_eq!(values.to_vec(&stream).unwrap(), [16.0; 2000]);
        });
    }
}

/// Operations of all sizes and kinds, so that each leaves protocols, slots and parities in another
/// state for the next.
#[test]
fn many_operations_are_enqueued_at_once() {
    run(3, &config(), |comm, stream| {
        let lengths = [1, 5000, 17, 40_000, 300, 9000, 3];
        let mut buffers = lengths.map(|length| comm.gpu().upload(&vec![1i64; length]).unwrap());
        let mut gathered = comm.gpu().alloc::<i64>(3 * 300).unwrap();
        for turn in 0..21 {
            comm.all_reduce(&stream, &mut buffers[turn % 7], if turn % 2 == 0 { Sum } else { Max }).unwrap();
            comm.broadcast(&stream, &mut buffers[(turn + 3) % 7], turn % 3).unwrap();
            comm.all_gather(&stream, &buffers[4], &mut gathered).unwrap();
            comm.barrier(&stream).unwrap();
        }
        comm.synchronize(&stream).unwrap();
        // Each buffer was summed in one or two of its three iterations.
        let sums = [9, 3, 9, 3, 9, 3, 9];
        for (turn, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.to_vec(&stream).unwrap(), vec![sums[turn]; lengths[turn]], "{turn}");
        }
        assert_eq!(gathered.to_vec(&stream).unwrap(), [9; 900]);
    });
}

#[test]
fn graph_captures_from_another_stream() {
    run(2, &config(), |comm, stream| {
        let other = comm.gpu().stream().unwrap();
        let mut values = comm.gpu().upload(&[1.0f32; 2000]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        let graph = other.capture(|stream| comm.all_reduce(stream, &mut values, Sum)).unwrap();
        comm.synchronize(&stream).unwrap();
        graph.launch(&other).unwrap();
        comm.synchronize(&other).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), [4.0; 2000]);
    });
}

#[test]
fn graph_is_no_part_of_a_foreign_graph() {
    run(1, &config(), |comm, stream| {
        let mut values = comm.gpu().upload(&[1.0f32; 200]).unwrap();
        let graph = stream.capture(|stream| comm.all_reduce(stream, &mut values, Sum)).unwrap();
        stream.cudarc().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        let refused = graph.launch(&stream).unwrap_err();
        assert!(refused.to_string().contains("another library captures the stream"), "{refused}");
        drop(stream.cudarc().end_capture(CUgraphInstantiate_flags(0)).unwrap());
        graph.launch(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
    });
}

/// Without the order, kernels of both would receive each other's messages.
#[test]
fn graph_replay_is_ordered_with_other_streams() {
    run(2, &config(), |comm, stream| {
        let other = comm.gpu().stream().unwrap();
        let mut values = comm.gpu().upload(&vec![1i32; 20_000]).unwrap();
        let graph = other.capture(|stream| comm.all_reduce(stream, &mut values, Sum)).unwrap();
        for _ in 0..4 {
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            graph.launch(&other).unwrap();
        }
        comm.synchronize(&stream).unwrap();
        comm.synchronize(&other).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), vec![1 << 8; 20_000]);
    });
}

#[test]
fn operations_follow_each_other_across_streams() {
    run(2, &config(), |comm, stream| {
        let other = comm.gpu().stream().unwrap();
        let mut values = comm.gpu().upload(&[1i32; 3000]).unwrap();
        for turn in 0..6 {
            let stream = if turn % 2 == 0 { &stream } else { &other };
            comm.all_reduce(stream, &mut values, Sum).unwrap();
        }
        comm.synchronize(&stream).unwrap();
        comm.synchronize(&other).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), [64; 3000]);
    });
}

#[test]
fn communicators_on_one_gpu_are_independent() {
    let Some(gpu) = gpu() else { return };
    let [first, second] = [2, 2].map(|ranks| Communicator::builder().config(&config()).local(ranks).unwrap());
    std::thread::scope(|scope| {
        for (rank, (first, second)) in first.into_iter().zip(second).enumerate() {
            let gpu = &gpu;
            scope.spawn(move || {
                let comms = [first.to_device(gpu).unwrap(), second.to_device(gpu).unwrap()];
                let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
                let mut values = [0, 1].map(|_| gpu.upload(&[1i32; 3000]).unwrap());
                // Each rank uses another order.
                for turn in [rank, 1 - rank] {
                    comms[turn].all_reduce(&streams[turn], &mut values[turn], Sum).unwrap();
                }
                for turn in 0..2 {
                    comms[turn].synchronize(&streams[turn]).unwrap();
                    assert_eq!(values[turn].to_vec(&streams[turn]).unwrap(), [2; 3000]);
                }
            });
        }
    });
}

/// A launch waits for room in the queue of its stream, the kernels there wait for messages, and the
/// messages wait for the proxy thread.
#[test]
fn proxy_progresses_while_launch_is_blocked() {
    if gpu().is_none_or(|gpu| !gpu.is_emulated())
        || !run_in_own_process("streams::proxy_progresses_while_launch_is_blocked")
    {
        return;
    }
    emulator::set_stream_capacity(2).unwrap();
    run(2, &staged_config(), |comm, stream| {
        let mut values = comm.gpu().upload(&vec![1i64; 5000]).unwrap();
        for _ in 0..20 {
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
        }
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), vec![1 << 20; 5000]);
    });
}

/// A driver that lets nobody launch while a launch waits for room in its stream.
#[test]
fn rank_that_is_far_ahead_blocks_nobody() {
    if gpu().is_none_or(|gpu| !gpu.is_emulated())
        || !run_in_own_process("streams::rank_that_is_far_ahead_blocks_nobody")
    {
        return;
    }
    assert!(emulator::set_rule("context-lock", true).unwrap());
    let begun = std::sync::atomic::AtomicUsize::new(0);
    run(2, &config(), |comm, stream| {
        let mut values = comm.gpu().upload(&[0i32; 16]).unwrap();
        let mut late = comm.rank() == 1;
        for turn in 0..1300 {
            while std::mem::take(&mut late) && begun.load(Ordering::Relaxed) < 400 {
                // The other rank fills its stream first.
                std::thread::sleep(std::time::Duration::from_millis(1));
                late = true;
            }
            comm.all_reduce(&stream, &mut values, Max).unwrap();
            if comm.rank() == 0 {
                begun.store(turn, Ordering::Relaxed);
            }
        }
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), [0; 16]);
    });
}

/// One of two GPUs has an older driver that takes PTX only and has no LL128, as in a container.
///
/// The test runs in its own process, because other tests have opened their GPUs.
#[test]
fn ll_width_is_supported_by_all_gpus() {
    if gpu().is_none_or(|gpu| !gpu.is_emulated())
        || !run_in_own_process("streams::ll_width_is_supported_by_all_gpus")
    {
        return;
    }
    emulator::set_gpu_count(2).unwrap();
    emulator::set_cuda_version(12030).unwrap();
    emulator::set_accepts_cubins(false).unwrap();
    let older = Gpu::open(1).unwrap();
    emulator::set_cuda_version(12040).unwrap();
    emulator::set_accepts_cubins(true).unwrap();
    let gpus = [Gpu::open(0).unwrap(), older];
    assert_eq!(gpus.each_ref().map(Gpu::has_ll128), [true, false]);
    assert_eq!(gpus.each_ref().map(|gpu| gpu.images().ptx > 0), [false, true]);
    for of_ranks in [[0, 0], [0, 1], [1, 0]] {
        let comms = Communicator::builder().config(&config()).local(2).unwrap();
        std::thread::scope(|scope| {
            for comm in comms {
                let gpu = &gpus[of_ranks[comm.rank()]];
                scope.spawn(move || {
                    let (comm, stream) = (comm.to_device(gpu).unwrap(), gpu.stream().unwrap());
                    assert_eq!(comm.uses_ll128(), of_ranks == [0, 0]);
                    for name in ["ring", "oneshot"] {
                        comm.set_algorithm(Collective::AllReduce, Some(name)).unwrap();
                        let mut values = gpu.upload(&[1.0f32; 100]).unwrap();
                        comm.all_reduce(&stream, &mut values, Sum).unwrap();
                        comm.synchronize(&stream).unwrap();
                        assert_eq!(values.to_vec(&stream).unwrap(), [2.0; 100]);
                    }
                });
            }
        });
    }
}

#[test]
fn ranks_on_separate_gpus() {
    let Some(first) = test_gpu(2) else { return };
    let Some(second) = other_gpu() else { return };
    let gpus = [first, second];
    let comms = Communicator::builder().config(&config()).local(2).unwrap();
    std::thread::scope(|scope| {
        for comm in comms {
            let gpu = gpus[comm.rank()].clone();
            scope.spawn(move || {
                let (comm, stream) = (comm.to_device(&gpu).unwrap(), gpu.stream().unwrap());
                let mut values = gpu.upload(&[1i32; 3000]).unwrap();
                comm.all_reduce(&stream, &mut values, Sum).unwrap();
                comm.synchronize(&stream).unwrap();
                assert_eq!(values.to_vec(&stream).unwrap(), [2; 3000]);
            });
        }
    });
}
