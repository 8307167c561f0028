//! Descendants that ranks leave behind end with the job, and do not keep the job from ending.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");
/// Longer than anything takes that ends at all, on a busy machine.
const HANG: Duration = Duration::from_secs(100);

fn run(ranks: &str, script: &str) -> Output {
    Command::new(UNISONO).args(["run", "-n", ranks, "--", "sh", "-c", script]).output().expect("it starts")
}

/// The numbers that the ranks printed.
fn pids(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
}

fn exists(pid: &String) -> bool {
    std::path::Path::new("/proc").join(pid).exists()
}

#[test]
fn child_processes_of_a_rank_are_killed() {
    for leave in ["", "setsid "] {
        let begun = Instant::now();
        // The descendant holds the rank's output open, too. It prints its number itself, once it
        // has left the group.
        let script = format!("{leave}sh -c 'echo $$; exec sleep 3600' & sleep 0.3; exit 0");
        let output = run("2", &script);
        assert!(begun.elapsed() < HANG, "`{leave}`: took {:?}", begun.elapsed());
        assert!(output.status.success(), "`{leave}`");
        let pids = pids(&output);
        assert_eq!(pids.len(), 2, "`{leave}`: {output:?}");
        assert!(!pids.iter().any(exists), "`{leave}`: something is left");
    }
}

#[test]
fn ranks_that_ignore_signals_are_killed_after_the_grace() {
    let begun = Instant::now();
    let script = "trap '' TERM; echo $$; if [ $RANK = 1 ]; then exit 3; fi; while :; do sleep 0.1; done";
    let mut command = Command::new(UNISONO);
    command.args(["run", "-n", "3", "--grace-ms", "300", "--", "sh", "-c", script]);
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(3));
    assert!(begun.elapsed() >= Duration::from_millis(300), "took {:?}", begun.elapsed());
    assert!(!pids(&output).iter().any(exists), "a rank is left");
    let errors = String::from_utf8_lossy(&output.stderr);
    for words in ["ranks 0, 2 are still running 2s after that failure", "300ms after SIGTERM: killed"] {
        assert!(errors.contains(words), "`{words}` is not in: {errors}");
    }
}

#[test]
fn missing_program_exits_like_a_shell() {
    let code = |program: &str| {
        let status = Command::new(UNISONO)
            .args(["run", "-n", "2", "--", program])
            .stderr(Stdio::null())
            .status()
            .expect("it starts");
        status.code()
    };
    assert_eq!(code("/no/such/program"), Some(127));
    assert_eq!(code("/dev/null"), Some(126));
}

#[test]
fn signal_death_wins_over_later_exit_codes() {
    // Rank 0 exits because rank 1 is dying, and is seen first.
    let script = "if [ $RANK = 0 ]; then exit 1; fi; sleep 0.1; kill -SEGV $$";
    assert_eq!(run("2", script).status.code(), Some(128 + 11));
}

#[test]
fn closed_reader_does_not_hang_job() {
    let script = "\"$0\" run -n 2 -- sh -c 'while :; do echo more || exit 1; done' | head -n 1";
    let begun = Instant::now();
    let output = Command::new("sh").args(["-c", script, UNISONO]).stderr(Stdio::null()).output();
    let output = output.expect("it starts");
    assert_eq!(output.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1);
    assert!(begun.elapsed() < HANG, "took {:?}", begun.elapsed());
}
