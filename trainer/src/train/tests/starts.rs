//! Tests of the start of runs: fresh, resumed, and refused.

use super::*;

/// Returns the configuration of a tiny run that saves every other step.
fn tiny(folder: &Path, changes: &[&str]) -> Config {
    let small =
        ["model.layers=1", "model.width=16", "model.context=16", "schedule.steps=3", "checkpoint.every=2"];
    config(folder, &[&small[..], changes].concat())
}

fn rejection(folder: &Path, changes: &[&str]) -> String {
    train_on_threads(2, &tiny(folder, changes)).unwrap_err().to_string()
}

#[test]
fn new_run_does_not_mix_with_existing_checkpoints() {
    let folder = folder();
    train_on_threads(1, &tiny(folder.path(), &[])).unwrap();
    let error = rejection(folder.path(), &["schedule.steps=2"]);
    for words in ["checkpoints: has", "checkpoint.resume=true", "another checkpoint.folder", "remove"] {
        assert!(error.contains(words), "{error}");
    }
    train_on_threads(1, &tiny(folder.path(), &["checkpoint.every=0"])).unwrap();
    let error = rejection(folder.path(), &["checkpoint.every=0", "checkpoint.last=true"]);
    assert!(error.contains("checkpoint.last=false"), "{error}");
    train_on_threads(1, &tiny(folder.path(), &["checkpoint.resume=true"])).unwrap();
}

/// The file has more tokens than its samples, and the last one belongs to none.
#[test]
fn token_beyond_the_vocabulary_ends_the_start() {
    let folder = folder();
    let path = folder.path().join("tokens.u16");
    let start = |last: u32| {
        let tokens = (0..16 * 40 + 7).map(|index| index % 50).chain([last]);
        crate::data::TokenFile::write(&path, tokens).unwrap();
        let data = format!("data.path={}", path.display());
        train_on_threads(
            2,
            &tiny(folder.path(), &["data.kind=tokens", "data.vocabulary=50", &data, "checkpoint.every=0"]),
        )
    };
    assert_eq!(start(49).unwrap().steps, 3);
    let error = start(50).unwrap_err().to_string();
    assert!(error.ends_with("tokens.u16: token 647 is 50; the vocabulary has 50"), "{error}");
}

/// A short file is one piece, which rank 0 examines. The last token belongs to no sample.
#[test]
fn token_that_one_rank_finds_ends_the_start_of_all() {
    let folder = folder();
    let path = folder.path().join("tokens.u16");
    crate::data::TokenFile::write(&path, (0..16 * 40 + 7).map(|index| index % 50).chain([50])).unwrap();
    let data = format!("data.path={}", path.display());
    let config = tiny(folder.path(), &["data.kind=tokens", "data.vocabulary=50", &data]);
    let ends = run_ranks(3, |world| Run::new(&config, world).map(drop).unwrap_err().to_string());
    assert!(ends[0].ends_with("tokens.u16: token 647 is 50; the vocabulary has 50"), "{}", ends[0]);
    assert_eq!(ends[1..], ["examining the tokens of a file failed on rank 0"; 2]);
}

#[test]
fn incompatible_checkpoint_is_rejected_by_key() {
    let folder = folder();
    train_on_threads(1, &tiny(folder.path(), &["optimizer.kind=muon"])).unwrap();
    let resume = |change: &str| {
        rejection(
            folder.path(),
            &["checkpoint.resume=true", "optimizer.kind=muon", "schedule.steps=4", change],
        )
    };
    for (change, words) in [
        ("model.heads=1", "model.heads = 2, and this run has 1; set model.heads=2"),
        ("model.width=32", "model.width = 16, and this run has 32"),
        ("model.norm=rms", "model.norm = \"layer\", and this run has \"rms\""),
        ("model.freeze=[\"wte\"]", "model.freeze = [], and this run has [\"wte\"]"),
        ("optimizer.kind=adamw", "optimizer.kind = \"muon\", and this run has \"adamw\""),
        ("data.shuffle=false", "data.shuffle = false (saved: true); set data.shuffle=true, or accept"),
        ("optimizer.lr=1", "accept the change by checkpoint.allow_changes=optimizer.lr"),
        ("data.global_batch=4", "data.global_batch = 4 (saved: 12)"),
        ("model.dropout=0.5", "model.dropout = 0.5 (saved: 0.0)"),
        ("schedule.floor=0.5", "schedule.floor = 0.5 (saved: 0.1)"),
    ] {
        let error = resume(change);
        assert!(error.contains(words), "{change}: {error}");
    }
    let heads = ["model.heads=1".to_owned(), "sample.tokens=1".to_owned()];
    let error = generate(&folder.path().join("checkpoints"), "line", &heads, &mut |_| Ok(()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("model.heads = 2, and this run has 1"), "{error}");
    let may = ["model.activation_checkpointing=true", "data.micro_batch=1", "schedule.steps=4"];
    let accepted = ["model.dropout=0.1", "optimizer.lr=1e-3", "seed=2"];
    let named = ["checkpoint.allow_changes=model.dropout,optimizer,seed"];
    let resume = ["checkpoint.resume=true", "optimizer.kind=muon"];
    let error = rejection(folder.path(), &[&resume[..], &may, &accepted].concat());
    for words in ["accept the change by checkpoint.allow_changes=model.dropout,optimizer.lr,seed", "0.002"] {
        assert!(error.contains(words), "{error}");
    }
    let changes = [&resume[..], &may, &accepted, &named].concat();
    assert_eq!(train_on_threads(1, &tiny(folder.path(), &changes)).unwrap().steps, 4);
}

#[test]
fn last_step_is_saved_and_resume_is_a_no_op() {
    let folder = folder();
    let last = ["checkpoint.resume=true", "checkpoint.last=true"];
    let run = || train_on_threads(2, &tiny(folder.path(), &last)).unwrap();
    let (first, again) = (run(), run());
    let saved = crate::checkpoint::list(&folder.path().join("checkpoints"));
    assert_eq!(saved.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 3]);
    assert_eq!((again.steps, again.losses.len(), again.fingerprint), (3, 0, first.fingerprint));
}

#[test]
fn last_step_is_saved_and_resumed_run_keeps_interval() {
    let folder = folder();
    let saved = || {
        let saved_folders = crate::checkpoint::list(&folder.path().join("checkpoints"));
        saved_folders.into_iter().map(|(step, _)| step).collect::<Vec<_>>()
    };
    let run = |changes: &[&str]| {
        let more = ["checkpoint.every=0", "checkpoint.last=true", "checkpoint.keep=9"];
        train_on_threads(2, &tiny(folder.path(), &[&more[..], changes].concat())).unwrap()
    };
    run(&[]);
    assert_eq!(saved(), [3]);
    run(&["checkpoint.resume=true", "checkpoint.every=2", "schedule.steps=6"]);
    assert_eq!(saved(), [3, 4, 6]);
    run(&["checkpoint.resume=true", "schedule.steps=9"]);
    assert_eq!(saved(), [3, 4, 6, 8, 9]);
}

#[test]
fn other_data_are_begun_at_their_first_sample_if_allowed() {
    let folder = folder();
    train_on_threads(1, &tiny(folder.path(), &[])).unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("text.txt"), "other words, ".repeat(300)).unwrap();
    let path = format!("data.path={}", other.display());
    let changes = ["checkpoint.resume=true", "schedule.steps=5", &path];
    assert!(rejection(folder.path(), &changes).contains("checkpoint.allow_changes=data.path"));
    let config = tiny(folder.path(), &[&changes[..], &["checkpoint.allow_changes=data.path"]].concat());
    let outcome = train_on_threads(1, &config).unwrap();
    assert_eq!((outcome.steps, outcome.losses.len()), (5, 3));
}

#[test]
fn unwritable_outputs_are_rejected_at_start() {
    let folder = folder();
    for (changes, words) in [
        (["log.plot=/nowhere/run.svg", ""], "/nowhere/run.svg: log.plot: "),
        (["log.trace=/nowhere/trace.json", ""], "/nowhere/trace.json: log.trace: "),
        (["log.file=/nowhere/run.jsonl", ""], "/nowhere/run.jsonl: log.file: "),
        (["checkpoint.folder=/proc/nowhere", ""], "/proc/nowhere: checkpoint.folder: "),
        // The folder exists, but takes no files.
        (["checkpoint.folder=/proc/sys", ""], "/proc/sys: checkpoint.folder: "),
    ] {
        // The first step would fail at this learning rate, but it is not taken.
        let rate = ["optimizer.lr=1e30", "optimizer.max_grad_norm=0"];
        let changes = [&rate[..], &changes].concat();
        let changes: Vec<_> = changes.into_iter().filter(|change| !change.is_empty()).collect();
        let error = rejection(folder.path(), &changes);
        assert!(error.contains(words), "{changes:?}: {error}");
    }
    assert!(!folder.path().join("checkpoints").exists());
}

#[test]
fn two_runs_do_not_save_in_one_folder() {
    let folder = folder();
    train_on_threads(1, &tiny(folder.path(), &[])).unwrap();
    let other = std::fs::File::open(folder.path().join("checkpoints/lock")).unwrap();
    other.lock().unwrap();
    let resume = ["checkpoint.resume=true", "schedule.steps=5"];
    let error = rejection(folder.path(), &resume);
    assert!(error.contains("checkpoints: another run saves its checkpoints here"), "{error}");
    drop(other);
    assert_eq!(train_on_threads(1, &tiny(folder.path(), &resume)).unwrap().steps, 5);
}
