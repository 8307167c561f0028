//! The command, as somebody types it.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
    command.args(arguments).env_remove("RANK").output().expect("the command")
}

fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_printed_configuration_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.toml");
    let printed = said(&["train", "--print-config", "model.width=64", "strategy.kind=zero2"]);
    std::fs::write(&path, &printed).expect("a file");
    assert_eq!(said(&["train", "--config", path.to_str().expect("a path"), "--print-config"]), printed);
    assert!(printed.contains("width = 64") && printed.contains("kind = \"zero2\""));
}

#[test]
fn mistakes_are_one_line_and_exit_code_1() {
    let wrong = |arguments: &[&str], words: &str| {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.starts_with("unisono-train: ") && text.contains(words), "{text}");
    };
    wrong(&["train", "modle.width=3"], "the nearest is `model.width`");
    wrong(&["train", "--config", "/nowhere.toml"], "/nowhere.toml");
    wrong(&["train", "-n", "3"], "no multiple of micro-batch");
    wrong(&["train", "--dry-run", "7", "mesh.tensor=2"], "a world of 7 ranks cannot be cut");
    wrong(&["generate", "--checkpoint", "/nowhere", "--prompt", "a"], "/nowhere/manifest.json");
}

#[test]
fn a_dry_run_of_a_thousand_ranks_reads_no_data() {
    let arguments =
        ["data.path=/nowhere", "data.global_batch=4096", "strategy.kind=zero3", "data.micro_batch=4"];
    let text = said(&[&["train", "--dry-run", "1024"], &arguments[..]].concat());
    for words in [
        "parameters",
        "1024 ranks = tensor 1 x data 1024",
        "4096 = micro-batch 4 x accumulation 1",
        "zero3",
        "beyond 512",
    ] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
}
