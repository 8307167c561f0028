//! `unisono tune`: a table of the fastest, and whether the one in use is.

use std::path::Path;
use std::process::{Command, Output};
use unisono::select::TuningTable;
use unisono_transports::sys::affinity::available_cpus;

const QUICK_ARGS: [&str; 7] = ["--ranks", "2", "--transport", "shm", "--rounds", "1", "-e"];

fn tune(table: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("tune").args(QUICK_ARGS).args(arguments).env_remove("UNISONO_TUNING_FILE");
    command.envs(table.map(|table| ("UNISONO_TUNING_FILE", table)));
    command.output().expect("it starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn output_is_a_tuning_table() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("written.txt");
    let out = file.to_str().expect("text");
    let output = tune(None, &["32", "--collectives", "broadcast,all_gather", "-o", out]);
    assert!(output.status.success(), "{output:?}");
    let written = std::fs::read_to_string(&file).expect("a file");
    assert_eq!(written, text(&output));
    let table = TuningTable::parse(&written).expect("a table").to_string();
    // Two ranks, and as many more as have a core each.
    let field = match available_cpus().len() {
        1 => "shm-oversub any".to_owned(),
        cores => format!("shm {cores}"),
    };
    for collective in ["broadcast", "all_gather"] {
        assert!(table.lines().any(|line| line.starts_with(&format!("{collective} {field} any "))), "{table}");
    }
}

#[test]
fn check_detects_slow_choices() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow.txt");
    // The naive algorithm is slow over TCP: every rank sends its whole input to every other rank.
    std::fs::write(&file, "all_reduce tcp any any naive\n").expect("a file");
    let output = tune(Some(&file), &["1M", "--collectives", "all_reduce", "--check"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let slower = text.lines().filter(|line| line.contains(" naive ") && line.ends_with(" slower"));
    assert!(slower.count() > 0, "{text}");
    assert!(text.lines().last().is_some_and(|line| !line.starts_with("# 0 of 9 sizes")), "{text}");
}

#[test]
fn check_conflicts_with_out() {
    let output = tune(None, &["32", "--check", "-o", "table.txt"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
