//! Errors of GPU ranks name who, in what and where; the GPU is good afterwards.

use crate::world::{config, gpu, run};
use std::time::{Duration, Instant};
use unisono::schedule::{Collective, find};
use unisono::{Config, ErrorKind, Sum};

fn impatient() -> Config {
    Config { timeout: Duration::from_millis(400), ..config() }
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let errors = run(3, &impatient(), |comm, stream| {
        comm.use_algorithm(find(Collective::AllReduce, "ring").unwrap());
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(2));
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

/// The GPU is as good as new.
fn works() {
    run(2, &config(), |comm, stream| {
        let mut values = comm.gpu().upload(&[1.0f32; 100]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), [2.0; 100]);
    });
}

#[test]
fn different_calls_are_a_mismatch_that_names_both() {
    for algorithm in ["ring", "oneshot"] {
        let errors = run(2, &config(), |comm, stream| {
            comm.use_algorithm(find(Collective::AllReduce, algorithm).unwrap());
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
fn an_abort_ends_what_is_under_way_on_all_ranks() {
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
        assert!(begun.elapsed() < Duration::from_secs(10), "after {:?}", begun.elapsed());
        error
    });
    for error in errors.iter().flatten() {
        assert_eq!(*error.kind(), ErrorKind::Aborted { by: 1, reason: "enough".to_owned() });
    }
}

#[test]
fn misuse_leaves_the_communicator_good() {
    run(2, &config(), |comm, stream| {
        let input = comm.gpu().alloc::<f32>(3).unwrap();
        let mut output = comm.gpu().alloc::<f32>(4).unwrap();
        let error = comm.all_gather(&stream, &input, &mut output).unwrap_err();
        assert!(
            error.is_misuse() && error.to_string().contains("output has length 4, but 6 is needed"),
            "{error}"
        );
        assert!(comm.broadcast(&stream, &mut output, 2).unwrap_err().is_misuse());
        comm.all_reduce(&stream, &mut output, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
    });
}

#[test]
fn blocks_that_could_not_run_at_once_are_refused() {
    let Some(gpu) = gpu() else { return };
    let comms = unisono::Communicator::threads_with(40, &config()).unwrap();
    std::thread::scope(|scope| {
        let gpu = &gpu;
        let threads: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || comm.on(gpu).map(drop))).collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("blocks at once"), "{error}");
        }
    });
}
