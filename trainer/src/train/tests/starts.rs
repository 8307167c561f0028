//! How runs start, go on, and are refused.

use super::*;

/// A run of a few steps of a smaller model still, that saves every other step.
fn tiny(folder: &Path, changes: &[&str]) -> Config {
    let small =
        ["model.layers=1", "model.width=16", "model.context=16", "schedule.steps=3", "checkpoint.every=2"];
    config(folder, &[&small[..], changes].concat())
}

fn refused(folder: &Path, changes: &[&str]) -> String {
    on_threads(1, &tiny(folder, changes)).unwrap_err().to_string()
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
