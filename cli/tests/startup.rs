//! Startup of the command and of jobs with many ranks, and its end when the reader of its output is
//! gone.

use std::process::{Command, Output};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// Runs a script in which `$0` is the command, whose path may have spaces.
fn shell(script: &str) -> Output {
    Command::new("sh").args(["-c", script, UNISONO]).output().expect("it starts")
}

#[test]
fn closed_stdout_does_not_panic() {
    // The pipe is closed before anything is written.
    let output = shell("{ sleep 0.2; \"$0\" list; echo $? >&2; } | true");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "141\n");
}

#[test]
fn former_words_are_answered_with_current_ones() {
    for (words, hint) in [
        (&["algos"][..], "`algos` is now `list`"),
        (
            &["run", "-n", "2", concat!("--keep", "-going"), "--", "true"][..],
            "is now `--continue-on-failure`",
        ),
        (&["perf", "all_reduce", concat!("--report", "-floor")][..], "is now `--report-roofline`"),
    ] {
        let output = Command::new(UNISONO).args(words).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(hint), "{words:?}: {text}");
    }
}

#[test]
fn many_ranks_start_with_few_descriptors() {
    // They meet, pass a barrier and leave. The soft limit is raised as they need it.
    for (ranks, transport) in [(64, "shm"), (48, "tcp")] {
        let perf = format!("perf barrier -N {ranks} -b 8 -e 8 -n 1 -w 0 --transport {transport}");
        let output = shell(&format!("ulimit -Sn 100; exec \"$0\" {perf}"));
        assert!(output.status.success(), "{transport}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn missing_descriptors_are_named_by_every_rank() {
    // The command itself needs fewer: a rank has two pipes.
    let perf = "run -n 32 -- \"$0\" perf barrier -n 1 -w 0 --transport shm";
    let output = shell(&format!("ulimit -n 90; exec \"$0\" {perf}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    let named =
        |line: &&str| line.contains("rank 0 may have no more descriptors") && line.contains("ulimit -n");
    assert!(text.lines().any(|line| named(&line)), "{text}");
    assert!(!text.contains("as one user") && !text.contains("cannot share memory"), "{text}");
}
