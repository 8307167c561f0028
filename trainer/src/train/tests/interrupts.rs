//! Tests of runs that end early.

use super::*;
use crate::checkpoint::list;

/// Runs `ranks` ranks of which only the last is asked to stop, and returns their results.
fn interrupted(ranks: usize, config: &Config) -> Vec<TrainResult> {
    run_ranks(ranks, |world| {
        let interrupt = Interrupt::default();
        if world.rank() == ranks - 1 {
            interrupt.request();
        }
        train_loop::run_rank(world, config, &interrupt).unwrap()
    })
}

#[test]
fn request_of_one_rank_ends_all_ranks_after_the_same_step() {
    for mesh in ["mesh.tensor=1", "mesh.tensor=2", "mesh.sequence_data=2", "mesh.pipeline=2"] {
        let folder = folder();
        let small = ["data.micro_batch=1", "checkpoint.last=true", "sample.tokens=5"];
        let config = config(folder.path(), &[&small[..], &[mesh]].concat());
        let checkpoints = folder.path().join("checkpoints");
        for result in interrupted(4, &config) {
            let saved = result.interruption.expect(mesh).saved.expect("a checkpoint");
            assert_eq!((result.steps, result.losses.len()), (1, 1), "{mesh}");
            assert_eq!(list(&checkpoints), [(1, saved)], "{mesh}");
            assert_eq!((result.validation, result.sample), (None, None));
        }
    }
}

#[test]
fn save_request_of_one_rank_saves_on_all_and_goes_on() {
    for mesh in ["mesh.tensor=1", "mesh.tensor=2", "mesh.sequence_data=2", "mesh.pipeline=2"] {
        let folder = folder();
        let config = config(folder.path(), &["data.micro_batch=1", "checkpoint.every=1000", mesh]);
        let results = run_ranks(4, |world| {
            let interrupt = Interrupt::default();
            if world.rank() == 3 {
                interrupt.request_save();
            }
            train_loop::run_rank(world, &config, &interrupt).unwrap()
        });
        let saved: Vec<u64> =
            list(&folder.path().join("checkpoints")).into_iter().map(|(step, _)| step).collect();
        assert_eq!(saved, [1], "{mesh}");
        let complete = |result: &TrainResult| result.steps > 1 && result.interruption.is_none();
        assert!(results.iter().all(complete), "{mesh}");
    }
}

#[test]
fn interrupted_run_goes_on_to_the_same_weights() {
    let uninterrupted = folder();
    let expected = train_on_threads(2, &config(uninterrupted.path(), &[])).unwrap();
    let folder = folder();
    interrupted(2, &config(folder.path(), &["checkpoint.last=true", "checkpoint.async=true"]));
    let resumed = train_on_threads(2, &config(folder.path(), &["checkpoint.resume=true"])).unwrap();
    assert_eq!((&resumed.losses[..], resumed.fingerprint), (&expected.losses[1..], expected.fingerprint));
    assert_eq!(resumed.interruption, None);
}

#[test]
fn run_that_saves_nothing_says_so() {
    let folder = folder();
    let results = interrupted(2, &config(folder.path(), &[]));
    assert!(results.iter().all(|result| result.interruption == Some(Interruption { saved: None })));
}

#[test]
fn run_whose_log_cannot_be_written_saves_its_work() {
    let folder = folder();
    let config = config(folder.path(), &["checkpoint.last=true", "log.file=/dev/full"]);
    let error = train_on_threads(2, &config).unwrap_err().to_string();
    let saved = list(&folder.path().join("checkpoints"));
    let [(2, saved)] = &saved[..] else { panic!("{saved:?}") };
    let words = format!("the run is saved in `{}`: checkpoint.resume=true goes on", saved.display());
    assert!(error.starts_with("/dev/full: No space left") && error.contains(&words), "{error}");
}

#[test]
fn run_whose_trace_cannot_be_written_goes_on() {
    let folder = folder();
    let config = config(folder.path(), &["checkpoint.last=true", "log.trace=/dev/full"]);
    let outcome = train_on_threads(2, &config).unwrap();
    let saved: Vec<u64> =
        list(&folder.path().join("checkpoints")).into_iter().map(|(step, _)| step).collect();
    assert_eq!((outcome.steps, saved), (12, vec![12]));
}
