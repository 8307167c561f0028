//! Experts and long contexts over eight processes: kills, other meshes, and every transport.

#[path = "support/job.rs"]
mod job;

use job::{Job, last_step, wait_until, weights};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use unisono_trainer::config::Config;
use unisono_trainer::train::{StepRecord, train_on_threads};

const STEPS: usize = 40;

/// A GPT with experts on eight ranks.
const EXPERTS: &str = "model.layers=2 experts.count=8 experts.shared=1 experts.width=16 experts.balance=bias \
                       mesh.tensor=2 mesh.expert=4 strategy.kind=zero3";

/// A GPT whose sequences are shared by four ranks.
const LONG: &str = "model.layers=2 model.context=64 mesh.sequence_data=4 context.kv_transfer=ring \
                    context.placement=zig-zag mesh.tensor=2 strategy.kind=zero1";

/// Returns the words of a run in `folder`, with a log.
fn words(folder: &Path, changes: &str) -> Vec<String> {
    let run = format!("data.global_batch=8 schedule.steps={STEPS} log.validate_every=0 {changes}");
    let log = format!("log.file={}", folder.join("log.jsonl").display());
    run.split_whitespace().map(str::to_owned).chain([log]).collect()
}

fn start(folder: &Path, changes: &str, variables: &[(&str, &str)]) -> Job {
    let words = words(folder, changes);
    Job::with_env(8, folder, &words.iter().map(String::as_str).collect::<Vec<_>>(), variables)
}

fn losses(folder: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.join("log.jsonl")).expect("a log");
    text.lines().map(|line| serde_json::from_str::<StepRecord>(line).expect("a record").loss).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (left, right) in found.iter().zip(expected) {
        assert!((left / right - 1.0).abs() < 1e-5, "{left}, not {right}");
    }
}

/// Kills all eight processes twice. They resume to the bits of a run without kills, and the
/// checkpoint goes on the same way on the mesh `other` of four threads.
fn killed_run_resumes(mesh: &str, other: &str) {
    let (uninterrupted, killed) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let expected = weights(&start(uninterrupted.path(), &format!("{mesh} checkpoint.every=0"), &[]).finish());
    let folder = killed.path();
    let resume = format!("{mesh} checkpoint.resume=true");
    for number in 1..3 {
        let (step_before, job) =
            (last_step(folder), start(folder, &format!("{resume} checkpoint.every=2"), &[]));
        wait_until(|| last_step(folder) > step_before + 2);
        sleep(Duration::from_millis(7 * number));
        job.kill();
    }
    assert!(last_step(folder) < STEPS as u64, "killed too late: step {}", last_step(folder));
    let nothing = "checkpoint.resume=true checkpoint.every=0 checkpoint.last=false log.file=";
    let changes = words(folder, &format!("{mesh} {other} ")).into_iter();
    let words = job::small(folder).into_iter().chain(changes).chain(nothing.split(' ').map(str::to_owned));
    let config = Config::load(None, &words.collect::<Vec<_>>()).expect("legal");
    let found = train_on_threads(4, &config).expect("a run on another mesh");
    assert_near(&found.losses, &losses(uninterrupted.path())[STEPS - found.losses.len()..]);
    assert_eq!(weights(&start(folder, &format!("{resume} checkpoint.every=0"), &[]).finish()), expected);
}

#[test]
fn killed_experts_resume_bitwise_and_load_elsewhere() {
    killed_run_resumes(EXPERTS, "mesh.tensor=1 mesh.expert=2 mesh.pipeline=2 strategy.kind=zero1");
}

#[test]
fn killed_long_context_resumes_bitwise_and_loads_elsewhere() {
    killed_run_resumes(
        LONG,
        "mesh.tensor=1 mesh.sequence_data=2 context.kv_transfer=ulysses strategy.kind=zero3",
    );
}

#[test]
fn experts_match_one_rank_over_every_transport() {
    let alone = tempfile::tempdir().expect("a folder");
    let changes = format!("{EXPERTS} mesh.tensor=1 mesh.expert=1 checkpoint.every=0 checkpoint.last=false");
    let words = job::small(alone.path()).into_iter().chain(words(alone.path(), &changes));
    let config = Config::load(None, &words.collect::<Vec<_>>()).expect("legal");
    train_on_threads(1, &config).expect("a run");
    let expected = losses(alone.path());
    for transport in ["shm", "tcp"] {
        let folder = tempfile::tempdir().expect("a folder");
        let changes = format!("{EXPERTS} checkpoint.every=0");
        start(folder.path(), &changes, &[("UNISONO_TRANSPORT", transport)]).finish();
        assert_near(&losses(folder.path()), &expected);
    }
}
