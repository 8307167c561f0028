//! Threads of a block meet wherever one reads what another wrote: ThreadSanitizer's word.

use crate::emulator::Build;
use std::path::Path;
use std::process::{Command, Output};

/// A program of all kernels whose threads meet, `matmul` from another file perhaps.
fn program(name: &str, matmul: &str) -> Option<impl Fn(u32) -> bool + use<>> {
    let others =
        ["attention", "gradients", "loss", "rows"].map(|kernel| format!("kernels/model_{kernel}.cu"));
    let mut sources: Vec<&str> = others.iter().map(String::as_str).collect();
    sources.extend([matmul, "tests/kernels/model_races.cpp"]);
    let program = Build { name, sources: &sources, races: true, library: false }.run()?;
    Some(move |seed| has_race(&program, seed))
}

/// Returns true if the program reports a race, with threads in the order of this seed.
fn has_race(program: &Path, seed: u32) -> bool {
    let run = |command: &mut Command| {
        command.arg(seed.to_string()).env("TSAN_OPTIONS", "exitcode=66").output().expect("built")
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let mut output = run(&mut Command::new(program));
    // ThreadSanitizer does not support the address randomization of some systems.
    if said(&output).contains("unexpected memory mapping") {
        output = run(Command::new("setarch").arg("-R").arg(program));
    }
    let reported = said(&output).contains("WARNING: ThreadSanitizer: data race");
    let expected = if reported { 66 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{}", said(&output));
    reported
}

#[test]
fn threads_meet_before_they_read_what_others_wrote() {
    let Some(right) = program("model-races", "kernels/model_matmul.cu") else { return };
    assert!((0..2).all(|seed| !right(seed)));
    let wrong = program("model-planted", "tests/kernels/model_missing_barrier.cu").expect("a compiler");
    assert!(wrong(0), "a barrier less is seen");
}
