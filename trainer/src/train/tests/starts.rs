//! How runs start, go on, and are refused.

use super::*;

/// A run of a few steps of a smaller model still, that saves every other step.
fn tiny(folder: &Path, changes: &[&str]) -> Config {
    let small =
        ["model.layers=1", "model.width=16", "model.context=16", "schedule.steps=3", "checkpoint.every=2"];
    config(folder, &[&small[..], changes].concat())
}

fn refused(folder: &Path, changes: &[&str]) -> String {
    on_threads(2, &tiny(folder, changes)).unwrap_err().to_string()
}

#[test]
fn a_new_run_does_not_mix_its_checkpoints_with_those_that_are_there() {
    let folder = folder();
    on_threads(1, &tiny(folder.path(), &[])).unwrap();
    let error = refused(folder.path(), &["schedule.steps=2"]);
    for words in ["checkpoints: has", "checkpoint.resume=true", "another checkpoint.folder", "remove"] {
        assert!(error.contains(words), "{error}");
    }
    on_threads(1, &tiny(folder.path(), &["checkpoint.every=0"])).unwrap();
    on_threads(1, &tiny(folder.path(), &["checkpoint.resume=true"])).unwrap();
}

#[test]
fn a_checkpoint_of_another_model_or_optimiser_is_refused_by_the_key() {
    let folder = folder();
    on_threads(1, &tiny(folder.path(), &["optimiser.kind=muon"])).unwrap();
    let resume = |change: &str| {
        refused(folder.path(), &["checkpoint.resume=true", "optimiser.kind=muon", "schedule.steps=4", change])
    };
    for (change, words) in [
        ("model.heads=1", "model.heads = 2, and this run has 1; set model.heads=2"),
        ("model.width=32", "model.width = 16, and this run has 32"),
        ("model.norm=rms", "model.norm = \"layer\", and this run has \"rms\""),
        ("model.freeze=[\"wte\"]", "model.freeze = [], and this run has [\"wte\"]"),
        ("optimiser.kind=adamw", "optimiser.kind = \"muon\", and this run has \"adamw\""),
        ("data.shuffle=false", "data.shuffle = true, and this run has false"),
    ] {
        let error = resume(change);
        assert!(error.contains(words), "{change}: {error}");
    }
    let heads = ["model.heads=1".to_owned(), "sample.tokens=1".to_owned()];
    let error = generate(&folder.path().join("checkpoints"), "line", &heads).unwrap_err().to_string();
    assert!(error.contains("model.heads = 2, and this run has 1"), "{error}");
    let may = ["model.dropout=0.1", "model.checkpointing=true", "optimiser.lr=1e-3", "schedule.steps=4"];
    let changes = [&["checkpoint.resume=true", "optimiser.kind=muon"], &may[..]].concat();
    assert_eq!(on_threads(1, &tiny(folder.path(), &changes)).unwrap().steps, 4);
}

#[test]
fn the_last_step_is_saved_and_resuming_there_leaves_nothing_to_do() {
    let folder = folder();
    let run = || on_threads(2, &tiny(folder.path(), &["checkpoint.resume=true"])).unwrap();
    let (whole, again) = (run(), run());
    let saved = crate::checkpoint::list(&folder.path().join("checkpoints"));
    assert_eq!(saved.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 3]);
    assert_eq!((again.steps, again.losses.len(), again.fingerprint), (3, 0, whole.fingerprint));
}

#[test]
fn what_could_not_be_written_at_the_end_is_refused_at_the_start() {
    let folder = folder();
    for (changes, words) in [
        (["log.plot=/nowhere/run.svg", ""], "/nowhere/run.svg: log.plot: "),
        (["log.trace=/nowhere/trace.json", ""], "/nowhere/trace.json: log.trace: "),
        (["log.file=/nowhere/run.jsonl", ""], "/nowhere/run.jsonl: log.file: "),
        (["checkpoint.folder=/proc/nowhere", ""], "/proc/nowhere: checkpoint.folder: "),
        (["sample.prompt=", "sample.tokens=5"], "sample.prompt is empty"),
    ] {
        // A rate at which the first step would fail: it is not taken.
        let rate = ["optimiser.lr=1e30", "optimiser.clip=0"];
        let changes = [&rate[..], &changes].concat();
        let changes: Vec<_> = changes.into_iter().filter(|change| !change.is_empty()).collect();
        let error = refused(folder.path(), &changes);
        assert!(error.contains(words), "{changes:?}: {error}");
    }
    assert!(!folder.path().join("checkpoints").exists());
}
