//! Processes killed at random times resume without a difference.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const STEPS: u64 = 400;

/// Ranks of one job.
struct Job(Vec<Child>);

impl Job {
    /// Starts two processes that train with `overrides` in `folder`.
    fn start(folder: &Path, overrides: &[&str]) -> Self {
        Self::of(2, folder, overrides)
    }

    fn of(ranks: usize, folder: &Path, overrides: &[&str]) -> Self {
        let port = free_port();
        let rank = |rank: usize| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
            command.arg("train").args(small(folder)).args(overrides);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.env("UNISONO_SECRET", "ab".repeat(32));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
        };
        Self((0..ranks).map(rank).collect())
    }

    fn kill(mut self) {
        for child in &mut self.0 {
            child.kill().expect("a process to kill");
        }
        self.0.into_iter().for_each(|mut child| drop(child.wait()));
    }

    fn finish(self) -> Vec<Output> {
        self.0.into_iter().map(|child| child.wait_with_output().expect("an end")).collect()
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn small(folder: &Path) -> Vec<String> {
    let text: String = (0..500).map(|line| format!("line {line} of {}\n", line * 7 % 13)).collect();
    std::fs::write(folder.join("text.txt"), text).expect("a text");
    let fixed = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=16", "sample.tokens=0"];
    let run = ["data.global_batch=4", "data.micro_batch=1", "schedule.warmup=2", "checkpoint.every=1"];
    let own = [
        format!("data.path={}", folder.display()),
        format!("checkpoint.folder={}", folder.join("checkpoints").display()),
        format!("schedule.steps={STEPS}"),
    ];
    fixed.into_iter().chain(run).map(str::to_owned).chain(own).collect()
}

/// Returns the line about the weights in rank 0's output.
fn weights(outputs: &[Output]) -> String {
    let (out, error) =
        (String::from_utf8_lossy(&outputs[0].stdout), String::from_utf8_lossy(&outputs[0].stderr));
    let line = out.lines().find(|line| line.starts_with("weights "));
    line.unwrap_or_else(|| panic!("no weights in {out}, {error}")).to_owned()
}

/// Returns the step of the last complete checkpoint.
fn last_step(folder: &Path) -> u64 {
    unisono_trainer::checkpoint::list(&folder.join("checkpoints")).last().map_or(0, |(step, _)| *step)
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never came to that");
        sleep(Duration::from_millis(1));
    }
}

/// Returns a pseudorandom pause that is equal in every run of this test.
fn pause(number: u64) -> Duration {
    Duration::from_micros(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49)
}

#[test]
fn repeatedly_killed_job_reaches_same_weights() {
    let (whole, killed) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let expected = weights(&Job::start(whole.path(), &["checkpoint.every=0"]).finish());
    let (mut kills, mut unfinished, folder) = (0, 0, killed.path());
    while kills < 5 || (unfinished == 0 && kills < 20) {
        let (before, job) = (last_step(folder), Job::start(folder, &["checkpoint.resume=true"]));
        wait_until(|| last_step(folder) > before);
        sleep(pause(kills));
        job.kill();
        let left = std::fs::read_dir(folder.join("checkpoints")).expect("checkpoints");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        unfinished += left.map(name).filter(|name| name.to_string_lossy().starts_with("unfinished")).count();
        kills += 1;
        assert!(last_step(folder) < STEPS - 100, "killed too late: step {}", last_step(folder));
    }
    assert!(unfinished > 0, "no save was interrupted");
    let resumed = Job::start(folder, &["checkpoint.resume=true", "checkpoint.every=0"]).finish();
    assert_eq!(weights(&resumed), expected);
}

/// Kills rank 1 of `ranks` during a run. The others must end soon and name it.
fn kill_one_rank(ranks: usize, overrides: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut job = Job::of(ranks, folder.path(), &[&["schedule.steps=1000000"], overrides].concat());
    wait_until(|| last_step(folder.path()) > 0);
    // A random point in a step.
    sleep(Duration::from_millis(100));
    job.0[1].kill().expect("a process to kill");
    let start = Instant::now();
    let outputs = job.finish();
    assert!(start.elapsed() < Duration::from_secs(20), "{overrides:?}: {:?}", start.elapsed());
    for rank in (0..ranks).filter(|&rank| rank != 1) {
        let said = String::from_utf8_lossy(&outputs[rank].stderr);
        assert_eq!(outputs[rank].status.code(), Some(1), "{overrides:?}, rank {rank}: {said}");
        assert!(
            said.contains("unisono-train: ") && said.contains("rank 1"),
            "{overrides:?}, rank {rank}: {said}"
        );
    }
}

#[test]
fn killed_rank_is_named_by_survivor() {
    kill_one_rank(2, &[]);
}

#[test]
fn killed_rank_is_named_with_gpu_tensor_parallel() {
    // With few checkpoints, nearly all the time is spent in layers.
    let device = ["device=software", "mesh.tensor=2", "checkpoint.every=3"];
    kill_one_rank(2, &device);
    let rows = ["strategy.sequence_parallel=true", "strategy.kind=zero2"];
    kill_one_rank(4, &[&device[..], &rows].concat());
}
