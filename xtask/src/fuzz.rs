//! Fuzzing: inputs that a parser does not survive, found by libFuzzer under AddressSanitizer.
//!
//! A C++ compiler is required, nightly Rust is not. Findings are in `fuzz/artifacts`; the seeds are
//! in `fuzz/corpus`.

use crate::{Result, cargo};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Duration for each target, in seconds.
    seconds: u64,
    /// Targets, all if none is named: the folders of fuzz/corpus.
    targets: Vec<String>,
}

/// Coverage instrumentation as libFuzzer expects it.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1";

/// Fuzzes each target, prints a table, and fails if there are findings, old ones included.
pub(crate) fn run(arguments: &Arguments) -> Result {
    let folder = cargo::root().join("fuzz");
    let targets = targets(&folder, &arguments.targets)?;
    let program = build(&folder)?;
    let mut table = row(["target", "executions", "a second", "peak MiB", "findings"]);
    let mut failed = false;
    for target in &targets {
        println!("== {target}");
        let (log, ended) = fuzz(&folder, &program, target, arguments.seconds)?;
        log.lines().filter(|line| is_finding(line)).for_each(|line| println!("{line}"));
        let findings = count_files(&folder.join("artifacts").join(target));
        failed |= !ended || findings > 0;
        let stat = |name: &str| stat(&log, name).unwrap_or_default();
        let (executions, rate, peak) =
            (stat("number_of_executed_units"), stat("average_exec_per_sec"), stat("peak_rss_mb"));
        table += &row([target, &executions, &rate, &peak, &findings.to_string()]);
    }
    print!("{table}");
    match failed {
        false => Ok(()),
        true => {
            Err("a target has findings or did not run: see the lines above and fuzz/artifacts".to_owned())
        }
    }
}

/// Returns the targets that were asked for, or every folder of the corpus.
fn targets(folder: &Path, wanted: &[String]) -> Result<Vec<String>> {
    let corpus = folder.join("corpus");
    let entries = std::fs::read_dir(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
    let names = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut targets: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    targets.sort();
    match wanted.iter().find(|target| !targets.contains(target)) {
        Some(unknown) => Err(format!("there is no target {unknown}; there are {}", targets.join(", "))),
        None if wanted.is_empty() => Ok(targets),
        None => Ok(wanted.to_vec()),
    }
}

fn build(folder: &Path) -> Result<PathBuf> {
    let host = cargo::host_triple()?;
    let mut command = cargo::cargo();
    command.current_dir(folder).args(["build", "--release", "--quiet", "--target", &host]);
    cargo::run(command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", COVERAGE))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(folder.join(target).join(host).join("release/unisono-fuzz"))
}

/// Runs one target; returns its log and whether it ended without a finding.
fn fuzz(folder: &Path, program: &Path, target: &str, seconds: u64) -> Result<(String, bool)> {
    // New inputs go to a folder that is removed; the seeds are only read.
    let found = cargo::target().join(format!("tmp/fuzz-{}-{target}", std::process::id()));
    let artifacts = folder.join("artifacts").join(target);
    for made in [&found, &artifacts] {
        std::fs::create_dir_all(made).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .arg(format!("-max_total_time={seconds}"))
        .args(["-rss_limit_mb=1024", "-timeout=5", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix=artifacts/{target}/"))
        .arg(&found)
        .arg(format!("corpus/{target}"))
        .env("FUZZ_TARGET", target)
        // A small quarantine reuses freed memory soon; touching new pages is slow.
        .env("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=16")
        .stdout(Stdio::null());
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    let _ = std::fs::remove_dir_all(&found);
    Ok((String::from_utf8_lossy(&output.stderr).into_owned(), output.status.success()))
}

fn is_finding(line: &str) -> bool {
    ["==", "SUMMARY", "thread"].iter().any(|start| line.starts_with(start)) || line.contains("panicked")
}

/// Returns one of libFuzzer's final statistics.
fn stat(log: &str, name: &str) -> Option<String> {
    let prefix = format!("stat::{name}:");
    log.lines().find_map(|line| line.strip_prefix(&prefix)).map(|value| value.trim().to_owned())
}

fn count_files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

fn row([target, executions, rate, peak, findings]: [&str; 5]) -> String {
    format!("{target:<17} {executions:>12} {rate:>12} {peak:>9} {findings:>9}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_target_is_refused_by_name() {
        let folder = cargo::root().join("fuzz");
        let names = targets(&folder, &[]).expect("a corpus");
        assert!(names.len() >= 10, "{names:?}");
        assert_eq!(targets(&folder, &names[..1]), Ok(names[..1].to_vec()));
        let error = targets(&folder, &["nothing".to_owned()]).expect_err("unknown");
        assert!(error.contains("nothing") && error.contains(&names[0]), "{error}");
    }

    #[test]
    fn statistics_are_read_from_the_log() {
        let log = "x\nstat::peak_rss_mb:     41\n";
        assert_eq!((stat(log, "peak_rss_mb").as_deref(), stat(log, "other")), (Some("41"), None));
    }

    #[test]
    fn findings_are_lines_of_sanitizers_and_panics() {
        assert!(is_finding("==12==ERROR") && is_finding("thread 'x' panicked at"));
        assert!(!is_finding("#1024 pulse"));
    }
}
