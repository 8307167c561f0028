//! Tests of ranks that leave, and of the launches, graphs and memory that remain.

use crate::world::{config, config_with_timeout, gpu, run, run_in_own_process, staged_config};
use std::time::{Duration, Instant};
use unisono::device::GpuError;
use unisono::{Communicator, ErrorKind, Sum};
use unisono_transports::testing::HANG;

#[test]
fn finalized_rank_is_detected_at_once() {
    for config in [config(), staged_config()] {
        let errors = run(3, &config, |comm, stream| {
            let begun = Instant::now();
            let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            if comm.rank() == 1 {
                return None;
            }
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            let error = comm.synchronize(&stream).unwrap_err();
            assert!(begun.elapsed() < HANG, "after {:?}: {error}", begun.elapsed());
            Some(error)
        });
        for error in errors.into_iter().flatten().flatten() {
            assert_eq!(*error.kind(), ErrorKind::PeerFinalized { peer: 1 }, "{error}");
        }
    }
}

#[test]
fn enqueued_work_completes_after_drop() {
    for config in [config(), staged_config()] {
        run(2, &config, |comm, stream| {
            let gpu = comm.gpu().clone();
            let mut values = gpu.upload(&vec![1i32; 20_000]).unwrap();
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(300));
            }
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            drop(comm);
            stream.synchronize().unwrap();
            assert_eq!(values.to_vec(&stream).unwrap(), vec![2; 20_000]);
        });
    }
}

#[test]
fn graph_after_drop_reports_error() {
    run(2, &config(), |comm, stream| {
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        let graph = stream.capture(|stream| comm.all_reduce(stream, &mut values, Sum)).unwrap();
        graph.launch(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
        drop(comm);
        let error = graph.launch(&stream).unwrap_err();
        assert!(matches!(&error, GpuError::GraphInvalidated { why } if why.contains("dropped")), "{error}");
        assert_eq!(values.to_vec(&stream).unwrap(), [2.0; 100]);
    });
}

/// The test runs in its own process, because every other allocation would be counted, too.
#[test]
fn communicator_memory_is_reused() {
    // An unused GPU gives all memory back, so this one is kept in use.
    let Some(gpu) = gpu().filter(|gpu| gpu.is_emulated()) else { return };
    if !run_in_own_process("teardown::communicator_memory_is_reused") {
        return;
    }
    let turn = || {
        run(2, &config(), |comm, stream| {
            comm.barrier(&stream).unwrap();
            comm.synchronize(&stream).unwrap();
        });
        std::fs::read_to_string("/proc/self/maps").unwrap().matches("unisono device memory").count()
    };
    let counts: Vec<usize> = (0..24).map(|_| turn()).collect();
    // Buffers still in use at the query leave room for a few more, but not for one of every
    // iteration and rank.
    assert!(counts[23] < counts[11] + 12, "{counts:?} on {gpu:?}");
}

#[test]
fn stale_reports_are_not_quoted() {
    let config = config_with_timeout(Duration::from_millis(900));
    let errors = run(2, &config, |comm, stream| {
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        if comm.rank() == 0 {
            // The other rank reports its wait within this time.
            std::thread::sleep(Duration::from_millis(550));
        }
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(2000));
            return comm.check().unwrap_err();
        }
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap_err()
    });
    for error in errors.iter().flatten() {
        assert!(error.to_string().contains("rank 1 (silent)"), "{error}");
    }
}

#[test]
fn config_mismatch_names_both_values() {
    let Some(gpu) = gpu() else { return };
    let id = unisono::UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (id, gpu) = (&id, &gpu);
            scope.spawn(move || {
                let mut config = config();
                config.gpu.fifo_slot_bytes = 4096 + 4096 * rank;
                let comm = Communicator::join(id, rank, 2, &config).unwrap();
                comm.to_device(gpu).map(drop).unwrap_err()
            })
        };
        let threads = [rank(0), rank(1)];
        for thread in threads {
            let error = thread.join().unwrap().to_string();
            let mismatch = "UNISONO_GPU_FIFO_SLOT_BYTES is 4096 on rank 0 and 8192 on rank 1";
            assert!(error.contains(mismatch), "{error}");
        }
    });
}
