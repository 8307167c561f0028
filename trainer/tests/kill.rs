//! Processes killed at random times resume without a difference, and signals end runs well.

#[path = "support/job.rs"]
mod job;

use job::{Job, STEPS, last_step, wait_until, weights};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Returns a pseudorandom pause that is equal in every run of this test.
fn pause(number: u64) -> Duration {
    Duration::from_micros(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49)
}

#[test]
fn repeatedly_killed_job_reaches_same_weights() {
    let (uninterrupted, killed) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let expected = weights(&Job::start(uninterrupted.path(), &["checkpoint.every=0"]).finish());
    let (mut kills, mut unfinished, folder) = (0, 0, killed.path());
    while kills < 5 || (unfinished == 0 && kills < 20) {
        let (step_before, job) = (last_step(folder), Job::start(folder, &["checkpoint.resume=true"]));
        wait_until(|| last_step(folder) > step_before);
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
    let mut job = Job::with_env(
        ranks,
        folder.path(),
        &[&["schedule.steps=1000000"], overrides].concat(),
        // The end of the rank must end the waits of the others.
        &[("UNISONO_TIMEOUT_MS", "3600000")],
    );
    wait_until(|| last_step(folder.path()) > 0);
    // A random point in a step.
    sleep(Duration::from_millis(100));
    job.0[1].kill().expect("a process to kill");
    let start = Instant::now();
    let outputs = job.finish();
    assert!(start.elapsed() < Duration::from_secs(100), "{overrides:?}: {:?}", start.elapsed());
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

#[test]
fn killed_stage_is_named_by_other_stages() {
    kill_one_rank(2, &["mesh.pipeline=2", "model.layers=2"]);
    kill_one_rank(4, &["mesh.pipeline=4", "model.layers=4", "pipeline.schedule=zb-h1"]);
}

#[test]
fn killed_rank_is_named_by_ranks_that_share_experts() {
    kill_one_rank(4, &["experts.count=4", "mesh.expert=4", "strategy.kind=zero3"]);
}

#[test]
fn signal_to_one_process_ends_all_with_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let job =
        Job::of(3, folder.path(), &["schedule.steps=1000000", "data.global_batch=6", "checkpoint.every=7"]);
    wait_until(|| last_step(folder.path()) > 0);
    let pid = job.0[2].id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let outputs = job.finish();
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    assert_eq!(codes, [Some(130); 3]);
    let out = String::from_utf8_lossy(&outputs[0].stdout);
    let line = out.lines().last().expect("a line");
    let step = last_step(folder.path());
    assert!(line.starts_with(&format!("interrupted after step {step} of 1000000: saved ")), "{out}");
}

/// `mpirun` passes a signal on to all ranks, which have no `RANK`. One of them prints the line.
#[test]
fn signal_to_all_ranks_of_mpirun_is_told_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = job::free_port().to_string();
    let arguments = arguments(folder.path(), &["schedule.steps=1000000", "checkpoint.every=7"]);
    let start = |rank: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
        command.args(&arguments).env_remove("RANK").env_remove("WORLD_SIZE");
        command.env("OMPI_COMM_WORLD_RANK", rank.to_string()).env("OMPI_COMM_WORLD_SIZE", "2");
        command.env("OMPI_COMM_WORLD_LOCAL_SIZE", "2").env("UNISONO_SECRET", "ab".repeat(32));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    let job = Job((0..2).map(start).collect());
    wait_until(|| last_step(folder.path()) > 0);
    for process in &job.0 {
        let pid = process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    }
    let outputs = job.finish();
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    assert_eq!(codes, [Some(130); 2]);
    let lines =
        |output: &Output| String::from_utf8_lossy(&output.stderr).matches("ending after this step").count();
    assert_eq!(outputs.iter().map(lines).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn notice_to_one_process_saves_and_the_run_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let every = 200;
    let overrides = ["schedule.steps=1000000", "data.global_batch=6", "checkpoint.every=200"];
    let job = Job::of(3, folder.path(), &overrides);
    wait_until(|| last_step(folder.path()) > 0);
    let pid = job.0[2].id().to_string();
    let signal =
        |name: &str| assert!(Command::new("kill").args([name, &pid]).status().expect("kill").success());
    signal("-USR1");
    wait_until(|| !last_step(folder.path()).is_multiple_of(every));
    let saved = last_step(folder.path());
    wait_until(|| last_step(folder.path()) > saved);
    signal("-TERM");
    let outputs = job.finish();
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    assert_eq!(codes, [Some(130); 3]);
    let said = String::from_utf8_lossy(&outputs[0].stderr);
    assert!(said.contains(&format!("step {saved}: saving `")) && said.contains("as requested"), "{said}");
}

#[test]
fn kill_during_an_asynchronous_save_leaves_a_good_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    for kills in 0..4 {
        let step_before = last_step(folder.path());
        let job = Job::start(
            folder.path(),
            &["checkpoint.resume=true", "checkpoint.async=true", "schedule.steps=9999"],
        );
        wait_until(|| last_step(folder.path()) > step_before);
        sleep(pause(kills));
        job.kill();
        let last =
            unisono_trainer::checkpoint::latest(&folder.path().join("checkpoints")).expect("a checkpoint");
        unisono_trainer::checkpoint::verify_files(&last).expect("good");
    }
}

/// Returns the arguments of a run of a small model on threads, in `folder`.
fn arguments(folder: &Path, changes: &[&str]) -> Vec<String> {
    let changes = changes.iter().map(|&change| change.to_owned());
    ["train".to_owned()].into_iter().chain(job::small(folder)).chain(changes).collect()
}

/// Returns a trainer that gets SIGINT also where this test inherited it as ignored, as a job in the
/// background of a script does.
fn interruptible() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_unisono-train")]);
    command
}

/// Starts a run by a command, and sends SIGINT to it `times` times once it prints `sign`.
fn interrupt(mut command: Command, arguments: &[String], sign: &str, times: usize) -> (Output, Duration) {
    command.args(arguments).env_remove("RANK").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains(sign) {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("text") > 0, "it ended without `{sign}`");
    }
    let begun = Instant::now();
    for _ in 0..times {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    (child.wait_with_output().expect("an end"), begun.elapsed())
}

#[test]
fn inherited_ignored_interrupt_does_not_end_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sh");
    // As a script starts its background jobs.
    let script = format!("trap '' INT; exec {} \"$@\"", env!("CARGO_BIN_EXE_unisono-train"));
    command.args(["-c", &script, "sh"]);
    let arguments = arguments(folder.path(), &["schedule.steps=300", "checkpoint.every=0"]);
    let (output, _) = interrupt(command, &arguments, "step 1/", 2);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("300 steps"), "{out}");
}

#[test]
fn interrupted_run_saves_and_second_signal_ends_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let endless = arguments(folder.path(), &["schedule.steps=100000000"]);
    let (output, _) = interrupt(interruptible(), &endless, "step 1/", 1);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(130), "{out}");
    let line = out.lines().last().expect("a line");
    assert!(line.starts_with("interrupted after step ") && line.contains("checkpoint.resume=true"), "{out}");
    let saved =
        unisono_trainer::checkpoint::latest(&folder.path().join("checkpoints")).expect("a checkpoint");
    assert!(line.contains(&format!("saved `{}`", saved.display())), "{out}");

    // A step of many hours.
    let long = ["model.width=512", "model.layers=8", "model.context=512", "data.global_batch=1048576"];
    let fresh = format!("checkpoint.folder={}", folder.path().join("other").display());
    let slow = arguments(folder.path(), &[&long[..], &[&fresh]].concat());
    let (output, took) = interrupt(interruptible(), &slow, "checkpoints ", 2);
    assert_eq!(output.status.code(), Some(130));
    assert!(took < Duration::from_secs(100), "{took:?}");
}
