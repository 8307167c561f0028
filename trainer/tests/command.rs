//! The command, as somebody types it.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

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
fn every_variable_that_is_missing_or_wrong_is_named_at_once() {
    let good = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29400")];
    let wrong = |name: &str, value: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
        command.arg("train").envs(good).env_remove("UNISONO_ID");
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
        let begun = Instant::now();
        let output = command.output().expect("the command");
        assert!(begun.elapsed() < Duration::from_secs(1), "{name}: took {:?}", begun.elapsed());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(name), "{name}={value:?}: {text}");
    };
    for name in ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        wrong(name, None);
    }
    for (name, value) in [("RANK", "one"), ("RANK", "2"), ("WORLD_SIZE", "two"), ("MASTER_PORT", "-1")] {
        wrong(name, Some(value));
    }
}

#[test]
fn what_is_legal_and_hardly_meant_is_advised_against() {
    let advice = |changes: &[&str]| {
        let all = ["data.path=/nowhere", "data.global_batch=64", "schedule.reference_batch=64"];
        let text = said(&[&["train", "--dry-run", "8"], &all[..], changes].concat());
        text.split("To be considered").nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(advice(&["data.micro_batch=8"]), "");
    for (changes, words) in [
        (&["data.tail=pad"][..], "shows some samples twice"),
        (&["data.shuffle=false"], "every epoch has the same order"),
        (&["strategy.bucket_mb=0.5"], "25 is usual"),
        (&["strategy.kind=zero3", "strategy.prefetch=0"], "every unit waits for its weights"),
        (&["strategy.kind=zero3", "data.micro_batch=4"], "come before accumulation"),
        (&["schedule.reference_batch=8"], "lr_scale"),
        (&["model.width=8192", "model.heads=8", "model.layers=40"], "this host has room for"),
        (&["model.width=8192", "model.heads=8", "model.layers=40"], "activations are not shared out"),
    ] {
        let advice = advice(changes);
        assert!(advice.contains(words), "{changes:?}: `{words}` is not in{advice}");
    }
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
