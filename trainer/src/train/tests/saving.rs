//! Tests of checkpoints that a thread writes, of damaged ones, and of batches read ahead.

use super::*;
use crate::checkpoint::list;
use std::path::PathBuf;

/// Returns the files of a folder with their bytes, in order.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let name = |path: &PathBuf| PathBuf::from(path.file_name().unwrap());
    paths.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

#[test]
fn asynchronous_checkpoints_have_the_bytes_of_others() {
    for kind in ["bucketed", "zero3"] {
        let (kind, steps) = (format!("strategy.kind={kind}"), ["checkpoint.every=4", "checkpoint.keep=9"]);
        let saved = |way: &str| {
            let folder = folder();
            let config = config(folder.path(), &[&steps[..], &[&kind, way, "data.workers=2"]].concat());
            let outcome = train_on_threads(3, &config).unwrap();
            let all = list(&folder.path().join("checkpoints"));
            let shards = |(step, path): &(u64, PathBuf)| {
                let mut files = contents(path);
                files.retain(|(name, _)| name.extension().is_some_and(|found| found == "safetensors"));
                (*step, files)
            };
            (bits(&outcome), all.iter().map(shards).collect::<Vec<_>>())
        };
        let (one, other) = (saved("checkpoint.async=false"), saved("checkpoint.async=true"));
        assert_eq!(one.1.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8, 12]);
        assert!(one == other, "{kind}");
    }
}

#[test]
fn failed_asynchronous_checkpoint_ends_the_run() {
    let folder = folder();
    let config = config(folder.path(), &["checkpoint.every=2", "checkpoint.async=true"]);
    let error = run_ranks(2, |world| {
        let mut run = Run::new(&config, world)?;
        run.save()?;
        run.finish_save()?;
        // The place of the next checkpoint is taken by a file that cannot be removed as a folder.
        let blocker = folder.path().join("checkpoints/step-00000001");
        std::fs::write(&blocker, "").unwrap();
        run.step()?;
        run.save()?;
        run.finish_save()
    });
    let words: Vec<_> = error.into_iter().map(|end| end.unwrap_err().to_string()).collect();
    assert!(words[0].contains("step-00000001"), "{words:?}");
    assert!(words[1].contains("finishing a checkpoint failed on rank 0"), "{words:?}");
}

#[test]
fn last_good_checkpoint_is_named_if_the_newest_is_damaged() {
    let folder = folder();
    let saving = ["checkpoint.every=4", "checkpoint.keep=9", "schedule.steps=12"];
    train_on_threads(2, &config(folder.path(), &saving)).unwrap();
    let path = |step: u64, file: &str| folder.path().join(format!("checkpoints/step-{step:08}/{file}"));
    let resume = || {
        let config = config(folder.path(), &["checkpoint.resume=true"]);
        train_on_threads(2, &config).unwrap_err().to_string()
    };
    let manifest = path(12, "manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"step\": 12", "\"step\": 99")).unwrap();
    let error = resume();
    assert!(
        error.contains("the manifest is damaged") && error.contains("step-00000008`: `rm -r "),
        "{error}"
    );
    let shard = path(8, "rank-00000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let error = resume();
    assert!(error.contains("step-00000004`: `rm -r ") && error.contains("step-00000012`"), "{error}");
    std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000012")).unwrap();
    let error = resume();
    assert!(error.contains("the file is damaged; the last good checkpoint is"), "{error}");
    let generated =
        generate(&folder.path().join("checkpoints"), "line", &[], &mut |_| Ok(())).unwrap_err().to_string();
    assert!(generated.contains("step-00000004`: `rm -r "), "{generated}");
    std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000008")).unwrap();
    let config = config(folder.path(), &["checkpoint.resume=true"]);
    assert_eq!(train_on_threads(2, &config).unwrap().losses.len(), 8);
}

#[test]
fn batches_read_ahead_leave_the_bits_as_they_are() {
    let folder = folder();
    let run = |changes: &[&str]| {
        let all = [&["data.global_batch=4", "data.micro_batch=1", "checkpoint.every=5"], changes].concat();
        bits(&train_on_threads(2, &config(folder.path(), &all)).unwrap())
    };
    let whole = run(&["checkpoint.folder=none", "checkpoint.every=0"]);
    assert_eq!(run(&["data.workers=3"]), whole);
    std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000010")).unwrap();
    let rest = run(&["data.workers=2", "checkpoint.resume=true", "checkpoint.every=50"]);
    assert_eq!((&rest.0[..], rest.1), (&whole.0[5..], whole.1));
}
