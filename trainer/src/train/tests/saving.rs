//! Tests of checkpoints that a thread writes, of damaged ones, and of batches read ahead.

use super::*;
use crate::checkpoint::corruption_tests::rewrite;
use crate::checkpoint::{latest, list};
use crate::models::hugging_face::FileOptions;
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
            let saved_folders = list(&folder.path().join("checkpoints"));
            let shards = |(step, path): &(u64, PathBuf)| {
                let mut files = contents(path);
                files.retain(|(name, _)| name.extension().is_some_and(|found| found == "safetensors"));
                (*step, files)
            };
            (bits(&outcome), saved_folders.iter().map(shards).collect::<Vec<_>>())
        };
        let (left, right) = (saved("checkpoint.async=false"), saved("checkpoint.async=true"));
        assert_eq!(left.1.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8, 12]);
        assert!(left == right, "{kind}");
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
        let keys = [&["data.global_batch=4", "data.micro_batch=1", "checkpoint.every=5"], changes].concat();
        bits(&train_on_threads(2, &config(folder.path(), &keys)).unwrap())
    };
    let uninterrupted = run(&["checkpoint.folder=none", "checkpoint.every=0"]);
    assert_eq!(run(&["data.workers=3"]), uninterrupted);
    std::fs::remove_dir_all(folder.path().join("checkpoints/step-00000010")).unwrap();
    let resumed = run(&["data.workers=2", "checkpoint.resume=true", "checkpoint.every=50"]);
    assert_eq!((&resumed.0[..], resumed.1), (&uninterrupted.0[5..], uninterrupted.1));
}

/// Tokenizer with the words `a` and `b`.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "model":
    {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;

/// Trains with a tokenizer in `folder`, and returns its path and the folder of the checkpoint.
fn trained_with_tokenizer(folder: &Path) -> (PathBuf, PathBuf) {
    let tokenizer = folder.join("outside.json");
    std::fs::write(&tokenizer, TOKENIZER).unwrap();
    let tokenizer_change = format!("data.tokenizer={}", tokenizer.display());
    let config = config(folder, &["schedule.steps=3", "checkpoint.last=true", &tokenizer_change]);
    train_on_threads(2, &config).unwrap();
    (tokenizer, latest(&folder.join("checkpoints")).unwrap())
}

fn generated(checkpoint: &Path, overrides: &[String]) -> Result<String> {
    generate(checkpoint, "b", overrides, &mut |_| Ok(()))
}

fn exported(checkpoint: &Path, target: &Path) -> Result<Vec<u8>> {
    export(checkpoint, target, &[], FileOptions::default())?;
    Ok(std::fs::read(target.join("tokenizer.json")).unwrap())
}

#[test]
fn checkpoints_contain_their_tokenizer() {
    let folder = folder();
    let (tokenizer, checkpoint) = trained_with_tokenizer(folder.path());
    std::fs::remove_file(&tokenizer).unwrap();
    generated(&checkpoint, &["sample.tokens=3".to_owned()]).unwrap();
    assert_eq!(exported(&checkpoint, &folder.path().join("exported")).unwrap(), TOKENIZER.as_bytes());
    // A run names its tokenizer before its first step.
    let missing = config(folder.path(), &["data.tokenizer=/nowhere.json", "checkpoint.folder=other"]);
    let errors = run_ranks(2, |world| Run::new(&missing, world).err().unwrap().to_string());
    assert!(errors[0].contains("/nowhere.json"), "{errors:?}");
    assert!(errors[1].contains("reading the tokenizer failed on rank 0"), "{errors:?}");
}

#[test]
fn checkpoints_name_no_files_outside_of_their_folder() {
    let folder = folder();
    let (secret, checkpoint) = trained_with_tokenizer(folder.path());
    let export_folder = folder.path().join("exported");
    let tokenizer = checkpoint.join("tokenizer.json");
    std::fs::remove_file(&tokenizer).unwrap();
    std::os::unix::fs::symlink(&secret, &tokenizer).unwrap();
    let error = exported(&checkpoint, &export_folder).unwrap_err().to_string();
    assert!(error.contains("no file but a link"), "{error}");
    for file in ["../outside.json", "/etc/hostname", ""] {
        rewrite(&checkpoint, |manifest| manifest["tokenizer"]["file"] = file.into());
        let error = exported(&checkpoint, &export_folder).unwrap_err().to_string();
        assert!(error.contains("is not the name of a file"), "{error}");
    }
    rewrite(&checkpoint, |manifest| drop(manifest.as_object_mut().unwrap().remove("tokenizer")));
    let named = format!("data.tokenizer={}", secret.display());
    for error in [exported(&checkpoint, &export_folder).map(drop), generated(&checkpoint, &[]).map(drop)] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&named) && error.contains("could name any file"), "{error}");
    }
    assert!(!export_folder.exists());
    // Its reader decides which file is read.
    generated(&checkpoint, &[named, "sample.tokens=3".to_owned()]).unwrap();
    rewrite(&checkpoint, |manifest| {
        let text = manifest["configuration"].as_str().unwrap();
        manifest["configuration"] = text.replace("from = \"\"", "from = \"/nowhere\"").into();
    });
    let error = generated(&checkpoint, &[]).unwrap_err().to_string();
    assert!(error.contains("could name any file"), "the folder of model.from was opened: {error}");
}
