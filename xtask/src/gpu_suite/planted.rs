//! Runs of small stages with planted failures: the rows of the other stages must be there.

use super::environment::Environment;
use super::rows::{Row, is, parse, text};
use super::stages::Stage;
use super::steps::{Step, shell};
use super::{Setting, Suite};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A stage of one second or more of ten.
fn stage(name: &'static str, seconds: u64, steps: fn(&Setting) -> Vec<Step>) -> Stage {
    Stage {
        name,
        question: "a question",
        seconds,
        rehearsed: seconds,
        needs_overlap: true,
        is_gate: false,
        fallback: "next",
        steps,
    }
}

fn row_of_last(_: &Setting) -> Vec<Step> {
    vec![shell("echo '{\"row\": \"last\"}'")]
}

/// Runs the stages in six seconds, and returns the rows on the disk and README.md.
fn run(name: &str, stages: &[Stage]) -> (Vec<Row>, String) {
    let out = std::env::temp_dir().join(format!("unisono-planted-{name}-{}", std::process::id()));
    let work = PathBuf::from("/nowhere");
    let setting =
        Setting { root: std::env::temp_dir(), gpu: true, rehearsal: true, ..Setting::new(true, true) };
    let environment = Environment::new(Path::new("/nowhere"), Some(&work));
    let suite = Suite::new("planted", &out, environment, setting, Duration::from_secs(6)).expect("a folder");
    suite.run(stages).expect("all stages");
    let rows = std::fs::read_to_string(out.join("results.jsonl")).expect("rows");
    let readme = std::fs::read_to_string(out.join("README.md")).expect("a summary");
    assert_eq!(std::fs::read_dir(&out).expect("a folder").count(), 3, "three files come back");
    std::fs::remove_dir_all(&out).expect("removed");
    (rows.lines().map(|line| parse(line).expect("a row")).collect(), readme)
}

fn names(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| text(row, "row")).filter(|name| !name.is_empty()).collect()
}

#[test]
fn suite_keeps_rows_beside_a_hang_and_a_crash() {
    let stages = [
        // Its grandchild leaves the group and holds the pipes open.
        stage("hang", 1, |_| vec![shell("echo '{\"row\": \"hang\"}'; setsid sleep 600 & sleep 600")]),
        stage("crash", 4, |_| {
            vec![
                shell("echo '{\"row\": \"crash\"}'; kill -11 $$"),
                shell("echo '{\"row\": \"behind the crash\"}'"),
            ]
        }),
        stage("last", 4, row_of_last),
    ];
    let (rows, readme) = run("failures", &stages);
    assert_eq!(names(&rows), ["hang", "crash", "behind the crash", "last"]);
    assert!(readme.contains("killed at the end of its time") && readme.contains("signal 11"), "{readme}");
}

/// Prints what the stage would do: a row whose name says how it would launch.
fn row_of_launch(setting: &Setting) -> Vec<Step> {
    let gate = setting.gate;
    let launch = if gate.needs_plain_launches() { "plain" } else { "cooperative" };
    let replay = if gate.replays() { "replayed" } else { "enqueued" };
    vec![shell(&format!("echo '{{\"row\": \"{launch} {replay}\"}}'"))]
}

/// Runs a gate whose process ends by this script, and stages that do and do not follow it.
fn run_gate(name: &str, gate: fn(&Setting) -> Vec<Step>) -> (Vec<Row>, String) {
    let stages = [
        Stage { is_gate: true, needs_overlap: false, ..stage("gate", 2, gate) },
        stage("ranks", 4, row_of_launch),
        Stage { needs_overlap: false, ..stage("last", 4, row_of_last) },
    ];
    run(name, &stages)
}

#[test]
fn suite_follows_a_gate_that_answers_no() {
    let (rows, readme) = run_gate("nothing", |_| {
        let no = |launch: &str| {
            shell(&format!(
                "echo '{{\"rule\": \"overlap\", \"grids\": 2, \"launch\": \"{launch}\", \"answer\": false}}'"
            ))
        };
        ["plain", "cooperative", "graph"].map(no).into()
    });
    assert_eq!(names(&rows), ["last"]);
    assert!(readme.contains("left out: no two grids run at once"), "{readme}");
    let (rows, _) = run_gate("plain", |_| {
        let answers = "echo '{\"rule\": \"overlap\", \"grids\": 2, \"launch\": \"plain\", \"answer\": true}';\
            echo '{\"rule\": \"overlap\", \"grids\": 2, \"launch\": \"cooperative\", \"answer\": false}';\
            echo '{\"rule\": \"overlap\", \"grids\": 2, \"launch\": \"graph\", \"answer\": false}'";
        vec![shell(answers)]
    });
    assert_eq!(names(&rows), ["plain enqueued", "last"]);
    assert!(rows.iter().any(|row| row.contains_key("answer") && !is(row, "answer")));
}

#[test]
fn suite_goes_on_behind_a_gate_that_fails() {
    let (rows, _) = run_gate("failed", |_| vec![shell("kill -9 $$")]);
    assert_eq!(names(&rows), ["cooperative replayed", "last"]);
}
