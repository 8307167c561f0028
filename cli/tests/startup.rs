//! Startup of the command and of jobs with many ranks, and its end when the reader of its output is
//! gone.

use std::process::Command;
use std::time::{Duration, Instant};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// Starts so many ranks that meet, pass a barrier and leave, with few descriptors allowed at first.
fn start(ranks: usize, transport: &str) -> Duration {
    let script = format!(
        "ulimit -Sn 100; exec {UNISONO} perf barrier -N {ranks} -b 8 -e 8 -n 1 -w 0 --transport {transport}"
    );
    let begun = Instant::now();
    let output = Command::new("sh").args(["-c", &script]).output().expect("it starts");
    assert!(output.status.success(), "{transport}: {}", String::from_utf8_lossy(&output.stderr));
    begun.elapsed()
}

#[test]
fn closed_stdout_does_not_panic() {
    // The pipe is closed before anything is written.
    let script = format!("{{ sleep 0.2; {UNISONO} list; echo $? >&2; }} | true");
    let output = Command::new("sh").args(["-c", &script]).output().expect("it starts");
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
fn many_ranks_start_quickly() {
    // Half a second and one and a half where nothing else runs; tests share the cores.
    for (ranks, transport) in [(64, "shm"), (48, "tcp")] {
        let elapsed = start(ranks, transport);
        assert!(elapsed < Duration::from_secs(15), "{ranks} ranks over {transport} took {elapsed:?}");
    }
}
