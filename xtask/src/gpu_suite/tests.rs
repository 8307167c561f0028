//! Runs the tests of an executable, each with its own deadline, and prints a row for each.
//!
//! All tests run in one process as long as they pass, because opening a GPU takes half a second.
//! After a failure the rest gets a new process: an error of the GPU can stay until its process
//! ends.

use super::rows::{Row, parse, text};
use super::runner::{self, Next, Outcome};
use super::skips;
use crate::{Result, cargo};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Tests to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Executable of the tests.
    executable: PathBuf,
    /// Names of tests, or beginnings of names that end with `::`. Without any, all tests run.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Names of tests to leave out, or beginnings that end with `::`.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Seconds for each test.
    #[arg(long, default_value_t = 10)]
    each: u64,
    /// Number of tests over their time after which the rest is not run.
    #[arg(long, default_value_t = usize::MAX)]
    timeouts: usize,
    /// Also leave out what is too slow on the emulator.
    #[arg(long)]
    rehearsal: bool,
}

/// Runs the tests and fails if one fails.
pub(crate) fn run(arguments: &Arguments) -> Result {
    let listed = cargo::output(Command::new(&arguments.executable).arg("--list"))?;
    let names: Vec<String> =
        listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    let wanted = |name: &String| {
        (arguments.only.is_empty() || matches(name, &arguments.only)) && !matches(name, &arguments.without)
    };
    let mut pending = Vec::new();
    for name in names.into_iter().filter(wanted) {
        match skips::reason(&name, arguments.rehearsal) {
            Some(why) => print(&json!({"test": name, "outcome": "skipped", "why": why}))?,
            None => pending.push(name),
        }
    }
    if pending.is_empty() {
        return Err(format!("{}: no test has a wanted name", arguments.executable.display()));
    }
    let mut batch = Batch::new(pending, Duration::from_secs(arguments.each));
    while !batch.pending.is_empty() && batch.over_time < arguments.timeouts {
        batch.run(&arguments.executable)?;
    }
    for name in &batch.pending {
        print(&json!({"test": name, "outcome": "not run", "why": "too many tests were over their time"}))?;
    }
    match batch.failed {
        0 => Ok(()),
        failed => Err(format!("{failed} tests failed")),
    }
}

fn matches(name: &str, wanted: &[String]) -> bool {
    wanted.iter().any(|wanted| name == wanted || wanted.ends_with("::") && name.starts_with(wanted.as_str()))
}

/// Tests that have yet to run, and what has become of the others.
struct Batch {
    pending: Vec<String>,
    each: Duration,
    failed: usize,
    over_time: usize,
    /// The test that runs, and when it began.
    current: Option<(String, Instant)>,
}

impl Batch {
    fn new(pending: Vec<String>, each: Duration) -> Self {
        Self { pending, each, failed: 0, over_time: 0, current: None }
    }

    /// Runs pending tests in one process until one of them fails.
    fn run(&mut self, executable: &Path) -> Result {
        let mut command = Command::new(executable);
        command.args(&self.pending).args([
            "--exact",
            "--test-threads=1",
            "--format=json",
            "-Zunstable-options",
        ]);
        // The harness writes events as JSON only where unstable options are allowed.
        command.env("RUSTC_BOOTSTRAP", "1");
        let pending = self.pending.len();
        let outcome = runner::run(&mut command, STARTING, |line| match parse(line) {
            Some(event) => self.event(&event),
            None => {
                eprint!("{line}");
                Ok(Next::Continue)
            }
        })?;
        if let Some((name, begun)) = self.current.take() {
            let outcome = match outcome {
                Outcome::OverTime => "over its time".to_owned(),
                ended => format!("the process {ended}"),
            };
            self.over_time += usize::from(outcome == "over its time");
            return self.finish(&name, &outcome, begun);
        }
        // Without this, a process that ends before its first test would be started for ever.
        if self.pending.len() == pending {
            let name = self.pending[0].clone();
            return self.finish(&name, &format!("it did not begin: the process {outcome}"), Instant::now());
        }
        Ok(())
    }

    /// Takes an event of the harness.
    fn event(&mut self, event: &Row) -> Result<Next> {
        if text(event, "type") != "test" {
            return Ok(Next::Continue);
        }
        let name = text(event, "name").to_owned();
        match text(event, "event") {
            "started" => {
                self.current = Some((name, Instant::now()));
                Ok(Next::Within(self.each))
            }
            outcome => {
                let begun = self.current.take().map_or_else(Instant::now, |(_, begun)| begun);
                eprint!("{}", text(event, "stdout"));
                let outcome = if outcome == "ok" { "passed" } else { outcome };
                self.finish(&name, outcome, begun)?;
                Ok(if outcome == "failed" { Next::Stop } else { Next::Continue })
            }
        }
    }

    fn finish(&mut self, name: &str, outcome: &str, begun: Instant) -> Result {
        self.pending.retain(|pending| pending != name);
        self.failed += usize::from(!matches!(outcome, "passed" | "ignored"));
        let seconds = super::rows::round(begun.elapsed().as_secs_f64());
        print(&json!({"test": name, "outcome": outcome, "seconds": seconds}))
    }
}

/// Prints a row at once.
pub(super) fn print(object: &serde_json::Value) -> Result {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{object}").and_then(|()| out.flush());
    written.map_err(|error| format!("standard output: {error}"))
}

/// Returns true for a row of a test that did not hold.
pub(super) fn is_failed(row: &Row) -> bool {
    row.contains_key("test") && !matches!(text(row, "outcome"), "passed" | "skipped" | "ignored")
}

/// Time in which a process begins its first test.
const STARTING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn matches_takes_names_and_modules() {
        let wanted = ["a::".to_owned(), "b::c".to_owned()];
        assert!(matches("a::x", &wanted) && matches("b::c", &wanted));
        assert!(!matches("b::cd", &wanted) && !matches("aa::x", &wanted));
    }

    /// A program that behaves like the harness: of its tests, `fails` fails, `hangs` never ends,
    /// and `crashes` ends the process.
    const HARNESS: &str = r#"#!/bin/sh
for name; do
    case $name in -*) continue ;; esac
    printf '{"type":"test","event":"started","name":"%s"}\n' $name
    case $name in
        fails) printf '{"type":"test","event":"failed","name":"fails","stdout":"why\\n"}\n' ;;
        hangs) sleep 600 ;;
        crashes) kill -11 $$ ;;
        *) printf '{"type":"test","event":"ok","name":"%s"}\n' $name ;;
    esac
done
"#;

    #[test]
    fn batch_goes_on_after_failures_hangs_and_crashes() {
        let program = std::env::temp_dir().join(format!("unisono-harness-{}", std::process::id()));
        std::fs::write(&program, HARNESS).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&program, mode).expect("changed");
        let names = ["one", "fails", "two", "hangs", "three", "crashes", "four"].map(str::to_owned);
        let mut batch = Batch::new(names.to_vec(), Duration::from_millis(300));
        let mut left = Vec::new();
        while !batch.pending.is_empty() {
            batch.run(&program).expect("it ran");
            left.push(batch.pending.len());
        }
        // A process for the tests up to each that does not pass, and one for the last.
        assert_eq!((left, batch.failed, batch.over_time), (vec![5, 3, 1, 0], 3, 1));
        std::fs::remove_file(program).expect("removed");
    }
}
