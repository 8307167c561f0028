//! Output of the command `unisono-train`.

use std::process::{Command, Output};

/// Runs the command to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
    command.args(arguments).env_remove("RANK").output().expect("the command")
}

/// Returns what a successful command prints.
pub(crate) fn output_text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
