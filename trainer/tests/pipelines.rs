//! Pipelines over processes: same loss as one rank, over every transport and through kills.

#[path = "support/job.rs"]
mod job;

use job::{Job, last_step, wait_until, weights};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use unisono_trainer::config::Config;
use unisono_trainer::train::{StepRecord, train_on_threads};

const MODEL: [&str; 5] = [
    "model.layers=4",
    "model.tie_word_embeddings=true",
    "data.global_batch=8",
    "schedule.steps=50",
    "log.validate_every=0",
];
const MESH: [&str; 3] = ["mesh.pipeline=2", "mesh.tensor=2", "strategy.kind=zero1"];

/// Returns losses of all steps in the log of a run in `folder`.
fn losses(folder: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.join("log.jsonl")).expect("a log");
    let records = text.lines().map(|line| serde_json::from_str::<StepRecord>(line).expect("a record"));
    records.map(|record| record.loss).collect()
}

fn with_log(folder: &Path, changes: &[&str]) -> Vec<String> {
    let log = format!("log.file={}", folder.join("log.jsonl").display());
    MODEL.iter().chain(changes).map(|word| (*word).to_owned()).chain([log]).collect()
}

/// Trains on `ranks` processes and returns the line about the weights.
fn trained(folder: &Path, ranks: usize, changes: &[&str], variables: &[(&str, &str)]) -> String {
    let words = with_log(folder, changes);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    weights(&Job::with_env(ranks, folder, &words, variables).finish())
}

#[test]
fn eight_processes_match_one_rank_over_every_transport() {
    let alone = tempfile::tempdir().expect("a folder");
    trained(alone.path(), 1, &["checkpoint.every=0"], &[]);
    let expected = losses(alone.path());
    for transport in ["shm", "tcp"] {
        let folder = tempfile::tempdir().expect("a folder");
        let changes = [&MESH[..], &["checkpoint.every=0", "pipeline.schedule=zb-h1"]].concat();
        trained(folder.path(), 8, &changes, &[("UNISONO_TRANSPORT", transport)]);
        let found = losses(folder.path());
        assert_eq!(found.len(), 50);
        for (step, (left, right)) in found.iter().zip(&expected).enumerate() {
            assert!((left / right - 1.0).abs() < 1e-5, "{transport}, step {step}: {left}, not {right}");
        }
    }
}

#[test]
fn killed_pipeline_resumes_bitwise_and_loads_elsewhere() {
    let (uninterrupted, killed) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let expected = trained(uninterrupted.path(), 8, &[&MESH[..], &["checkpoint.every=0"]].concat(), &[]);
    let folder = killed.path();
    for number in 1..3 {
        let words =
            with_log(folder, &[&MESH[..], &["checkpoint.resume=true", "checkpoint.every=2"]].concat());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (step_before, job) = (last_step(folder), Job::of(8, folder, &words));
        wait_until(|| last_step(folder) > step_before + 4);
        sleep(Duration::from_millis(7 * number));
        job.kill();
    }
    assert!(last_step(folder) < 50, "killed too late: step {}", last_step(folder));
    let resume = [&MESH[..], &["checkpoint.resume=true", "checkpoint.every=0"]].concat();
    // Another mesh first: it changes nothing that the same mesh reads.
    let other = config(folder, &["mesh.pipeline=4", "pipeline.schedule=1f1b", "checkpoint.resume=true"]);
    let found = train_on_threads(4, &other).expect("a run on another mesh");
    let remaining = &losses(uninterrupted.path())[50 - found.losses.len()..];
    for (left, right) in found.losses.iter().zip(remaining) {
        assert!((left / right - 1.0).abs() < 1e-5, "{left}, not {right}");
    }
    assert_eq!(trained(folder, 8, &resume, &[]), expected);
}

/// Returns the configuration of the same run for threads of this process. It saves nothing.
fn config(folder: &Path, changes: &[&str]) -> Config {
    let words = job::small(folder).into_iter().chain(with_log(folder, changes));
    let nothing = ["checkpoint.every=0", "checkpoint.last=false", "log.file="].map(str::to_owned);
    Config::load(None, &words.chain(nothing).collect::<Vec<_>>()).expect("legal")
}
