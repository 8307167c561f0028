//! Ranks of a training job as processes.

#![allow(dead_code)] // each test uses a part of it

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Steps of a run, unless the test says otherwise.
pub(crate) const STEPS: u64 = 400;

/// Ranks of one job.
pub(crate) struct Job(pub(crate) Vec<Child>);

impl Job {
    /// Starts two processes that train with `overrides` in `folder`.
    pub(crate) fn start(folder: &Path, overrides: &[&str]) -> Self {
        Self::of(2, folder, overrides)
    }

    pub(crate) fn of(ranks: usize, folder: &Path, overrides: &[&str]) -> Self {
        Self::with_env(ranks, folder, overrides, &[])
    }

    /// Starts `ranks` processes that also have these environment variables.
    pub(crate) fn with_env(
        ranks: usize,
        folder: &Path,
        overrides: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let port = free_port();
        let rank = |rank: usize| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
            command.arg("train").args(small(folder)).args(overrides);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            // Other programs on the cores make a rank slow, and no test here is about that.
            command.env("UNISONO_TIMEOUT_MS", "300000");
            command.env("UNISONO_SECRET", "ab".repeat(32)).envs(variables.iter().copied());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
        };
        Self((0..ranks).map(rank).collect())
    }

    pub(crate) fn kill(mut self) {
        for child in &mut self.0 {
            child.kill().expect("a process to kill");
        }
        self.0.into_iter().for_each(|mut child| drop(child.wait()));
    }

    pub(crate) fn finish(self) -> Vec<Output> {
        self.0.into_iter().map(|child| child.wait_with_output().expect("an end")).collect()
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

pub(crate) fn small(folder: &Path) -> Vec<String> {
    let text: String = (0..500).map(|line| format!("line {line} of {}\n", line * 7 % 13)).collect();
    std::fs::write(folder.join("text.txt"), text).expect("a text");
    let fixed = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=16", "sample.tokens=0"];
    let run = ["data.global_batch=4", "data.micro_batch=1", "schedule.warmup=2", "checkpoint.every=1"];
    let varying = [
        format!("data.path={}", folder.display()),
        format!("checkpoint.folder={}", folder.join("checkpoints").display()),
        format!("schedule.steps={STEPS}"),
    ];
    fixed.into_iter().chain(run).map(str::to_owned).chain(varying).collect()
}

/// Returns the line about the weights in rank 0's output.
pub(crate) fn weights(outputs: &[Output]) -> String {
    let (out, error) =
        (String::from_utf8_lossy(&outputs[0].stdout), String::from_utf8_lossy(&outputs[0].stderr));
    let line = out.lines().find(|line| line.starts_with("weights "));
    line.unwrap_or_else(|| panic!("no weights in {out}, {error}")).to_owned()
}

/// Returns the step of the last complete checkpoint.
pub(crate) fn last_step(folder: &Path) -> u64 {
    unisono_trainer::checkpoint::list(&folder.join("checkpoints")).last().map_or(0, |(step, _)| *step)
}

pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANG, "it never came to that");
        sleep(Duration::from_millis(1));
    }
}

/// Longer than anything takes that comes at all, on cores that others use too.
const HANG: Duration = Duration::from_secs(900);
