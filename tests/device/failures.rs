//! Errors of GPU ranks name the peer, the operation and the place. The GPU stays usable.

use crate::world::{config, config_with_timeout, gpu, run, run_in_own_process};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use unisono::schedule::Collective;
use unisono::{AbortCause, Communicator, Config, ErrorKind, Sum, UniqueId};
use unisono_transports::testing::HANG;

/// Returns settings with a timeout of which a quarter is longer than a busy host delays a rank: a
/// rank that waits for a waiting one leaves it that quarter to report first.
fn short_timeout() -> Config {
    config_with_timeout(Duration::from_millis(1600))
}

#[test]
fn missing_rank_is_named() {
    let errors = run(3, &short_timeout(), |comm, stream| {
        comm.set_algorithm(Collective::AllReduce, Some("ring")).unwrap();
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(4));
            return comm.check().unwrap_err();
        }
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap_err()
    });
    let Some(errors) = errors else { return };
    for error in &errors {
        assert!(error.to_string().contains("rank 1 (silent)"), "{error}");
    }
    assert!(errors.iter().any(|error| matches!(error.kind(), ErrorKind::Timeout { .. })));
    assert!(errors[2].to_string().starts_with("rank 2 on "), "{}", errors[2]);
    assert!(errors[2].to_string().contains("all_reduce #0 (100 x float, sum, ring)"), "{}", errors[2]);
    works();
}

/// Asserts that the GPU works after a failure.
fn works() {
    run(2, &config(), |comm, stream| {
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), [2.0; 100]);
    });
}

#[test]
fn call_mismatch_names_both() {
    for algorithm in ["ring", "oneshot"] {
        let errors = run(2, &config(), |comm, stream| {
            comm.set_algorithm(Collective::AllReduce, Some(algorithm)).unwrap();
            let mut values = comm.gpu().upload(&vec![1.0f32; 100 + comm.rank()]).unwrap();
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            comm.synchronize(&stream).unwrap_err()
        });
        for error in errors.iter().flatten() {
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
            assert!(
                error.to_string().contains("(100 x float") && error.to_string().contains("(101 x float"),
                "{error}"
            );
        }
    }
}

#[test]
fn failure_dumps_one_record_per_rank() {
    let folder = std::env::temp_dir().join(format!("unisono-device-once-{}", std::process::id()));
    let config = config().with_flight_recorder_dir(Some(folder.clone()));
    let records = || -> Vec<String> {
        let files = std::fs::read_dir(&folder).into_iter().flatten();
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    };
    let together = Barrier::new(2);
    run(2, &config, |comm, stream| {
        let mut values = comm.gpu().upload(&vec![1.0f32; 100 + comm.rank()]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap_err();
        together.wait();
        let written = records();
        together.wait();
        // One of the two ranks reports the failure.
        let _ = std::fs::remove_dir_all(&folder);
        together.wait();
        let still = comm.check();
        together.wait();
        let tells = |record: &String| record.contains("(100 x float") && record.contains("(101 x float");
        assert!(written.len() == 2 && written.iter().all(tells), "{written:?}");
        assert!(still.is_err() && records().is_empty());
    });
}

#[test]
fn message_length_mismatch_names_both() {
    // The shorter message of a pair fills its last slot to the byte.
    for (sent, expected) in [(4096, 8192), (8192, 4096), (12, 8)] {
        let errors = run(2, &config(), |comm, stream| {
            let mut values = comm.gpu().alloc::<u8>(if comm.rank() == 0 { sent } else { expected }).unwrap();
            match comm.rank() {
                0 => comm.send(&stream, &values, 1).unwrap(),
                _ => comm.recv(&stream, &mut values, 0).unwrap(),
            }
            let mut more = comm.gpu().alloc::<u8>(1).unwrap();
            // This rank must wait for the error of the other one.
            let _ = comm.all_reduce(&stream, &mut more, Sum);
            comm.synchronize(&stream).unwrap_err()
        });
        for error in errors.iter().flatten() {
            assert!(
                matches!(error.kind(), ErrorKind::CountMismatch { sender: 0, receiver: 1, .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn abort_ends_operations_on_all_ranks() {
    let errors = run(2, &config(), |comm, stream| {
        let begun = Instant::now();
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(50));
            comm.abort("enough");
            assert!(comm.all_reduce(&stream, &mut values, Sum).is_err(), "it has ended");
            return comm.check().unwrap_err();
        }
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        let error = comm.synchronize(&stream).unwrap_err();
        assert!(begun.elapsed() < HANG, "after {:?}", begun.elapsed());
        error
    });
    for error in errors.iter().flatten() {
        assert_eq!(
            *error.kind(),
            ErrorKind::Aborted { by: 1, reason: "enough".to_owned(), cause: AbortCause::Request }
        );
    }
}

/// Tells the second process the address of the bootstrap.
const MEETING: &str = "UNISONO_TEST_DEVICE_DEATH";

#[test]
fn a_process_that_dies_is_named() {
    let Some(gpu) = gpu() else { return };
    let told = std::env::var(MEETING).ok();
    let (id, rank) = match &told {
        Some(id) => (id.parse().unwrap(), 1),
        None => (UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap(), 0),
    };
    let second = told.is_none().then(|| {
        let mut second = std::process::Command::new(std::env::current_exe().unwrap());
        second.args(["failures::a_process_that_dies_is_named", "--exact"]);
        second.env(MEETING, id.to_string()).spawn().unwrap()
    });
    let comm = Communicator::join(&id, rank, 2, &config()).unwrap().to_device(&gpu).unwrap();
    if second.is_none() {
        std::process::abort();
    }
    let (begun, stream) = (Instant::now(), gpu.stream().unwrap());
    let mut values = gpu.alloc::<f32>(100).unwrap();
    let error =
        comm.all_reduce(&stream, &mut values, Sum).and_then(|()| comm.synchronize(&stream)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerFailed { peer: 1, .. }), "{error}");
    assert!(begun.elapsed() < HANG, "after {:?}", begun.elapsed());
    second.into_iter().for_each(|mut second| drop(second.wait()));
}

#[test]
fn invalid_usage_keeps_communicator_usable() {
    run(2, &config(), |comm, stream| {
        let input = comm.gpu().alloc::<f32>(3).unwrap();
        let mut output = comm.gpu().alloc::<f32>(4).unwrap();
        let error = comm.all_gather(&stream, &input, &mut output).unwrap_err();
        assert!(
            error.is_invalid_usage() && error.to_string().contains("output has length 4, but 6 is needed"),
            "{error}"
        );
        assert!(comm.broadcast(&stream, &mut output, 2).unwrap_err().is_invalid_usage());
        comm.all_reduce(&stream, &mut output, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
    });
}

#[test]
fn blocks_beyond_occupancy_are_refused() {
    if gpu().is_none_or(|gpu| !gpu.is_emulated())
        || !run_in_own_process("failures::blocks_beyond_occupancy_are_refused")
    {
        return;
    }
    // Five ranks need two blocks each at least.
    unisono_cuda::emulator::set_max_resident_blocks(9).unwrap();
    let gpu = gpu().unwrap();
    let comms = Communicator::builder().config(&config()).local(5).unwrap();
    std::thread::scope(|scope| {
        let gpu = &gpu;
        let threads: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || comm.to_device(gpu).map(drop))).collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("blocks at once"), "{error}");
        }
    });
}

#[test]
fn kernel_that_does_not_fit_is_named_early() {
    if gpu().is_none_or(|gpu| !gpu.is_emulated()) {
        return;
    }
    if !run_in_own_process("failures::kernel_that_does_not_fit_is_named_early") {
        return;
    }
    unisono_cuda::emulator::set_oversized_kernel("schedule_double").unwrap();
    let gpu = gpu().unwrap();
    for comm in Communicator::builder().config(&config()).local(1).unwrap() {
        let error = comm.to_device(&gpu).map(drop).unwrap_err();
        assert!(error.to_string().contains("schedule_double do not fit"), "{error}");
    }
}
