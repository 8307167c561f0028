//! The summary of the suite: a chapter for each command, with its outcome, duration and output.

use crate::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Lines of a log without a table that the summary shows.
const LINES_MAX: usize = 40;

/// The folder of results, and its README.md as far as it is written.
pub(super) struct Report {
    out: PathBuf,
    /// Files of commands, until they are in results.jsonl.
    json: PathBuf,
    text: String,
    failures: usize,
}

impl Report {
    /// Creates the folder.
    pub(super) fn new(out: &Path) -> Result<Self> {
        std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
        let out = out.canonicalize().map_err(|error| format!("{}: {error}", out.display()))?;
        let json = std::env::temp_dir().join(format!("unisono-gpu-suite-{}", std::process::id()));
        std::fs::create_dir_all(&json).map_err(|error| format!("{}: {error}", json.display()))?;
        let text = "# unisono on a GPU\n\nWritten by `cargo xtask gpu-suite`.\n".to_owned();
        Ok(Self { out, json, text, failures: 0 })
    }

    /// Returns the path of a file that a command writes as JSON. It becomes a line of results.jsonl.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.json.join(name)
    }

    /// Returns the number of commands that failed.
    pub(super) fn failures(&self) -> usize {
        self.failures
    }

    /// Runs a command, keeps its output and its JSON file, and adds a chapter to README.md.
    ///
    /// A failed command is counted; the commands after it still run.
    pub(super) fn chapter(&mut self, title: &str, name: &str, command: &mut Command) -> Result {
        let begun = Instant::now();
        let (log, outcome) = match command.output() {
            Ok(output) => {
                let text =
                    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                let outcome = if output.status.success() { Ok(()) } else { Err(output.status.to_string()) };
                (text.concat(), outcome)
            }
            Err(error) => (String::new(), Err(error.to_string())),
        };
        let outcome = match outcome {
            Ok(()) => "passed".to_owned(),
            Err(error) => {
                self.failures += 1;
                format!("**failed: {error}**")
            }
        };
        let last = command.get_args().last().unwrap_or(command.get_program()).to_string_lossy().into_owned();
        let word = last.rsplit('/').next().unwrap_or_default();
        let seconds = begun.elapsed().as_secs();
        let _ = write!(self.text, "\n## {title}\n\n`{word}`: {outcome}, {seconds} s.\n\n{}", excerpt(&log));
        println!("{title}: {outcome}");
        self.append("log.txt", &format!("== {name}: {outcome}\n{log}\n"))?;
        let json = self.file(&format!("{name}.json"));
        if let Ok(text) = std::fs::read_to_string(&json) {
            let results = serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text));
            self.append("results.jsonl", &format!("{}\n", json!({"part": name, "results": results})))?;
            let _ = std::fs::remove_file(json);
        }
        let path = self.out.join("README.md");
        std::fs::write(&path, &self.text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn append(&self, name: &str, text: &str) -> Result {
        let path = self.out.join(name);
        let file = File::options().create(true).append(true).open(&path);
        let written =
            file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_data()));
        written.map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Returns the part of a log for the summary: Markdown tables as they are, else the last lines.
fn excerpt(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    if lines.iter().any(|line| line.starts_with('|')) {
        let kept = lines.iter().filter(|line| !line.starts_with("warning"));
        return kept.map(|line| format!("{line}\n")).collect();
    }
    format!("```\n{}\n```\n", lines[lines.len().saturating_sub(LINES_MAX)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_keeps_tables_and_the_end_of_logs() {
        assert_eq!(excerpt("a\nwarning: b\n| c |\n"), "a\n| c |\n");
        let long: String = (0..50).map(|line| format!("{line}\n")).collect();
        let shown = excerpt(&long);
        assert!(shown.starts_with("```\n10\n") && shown.ends_with("49\n```\n"), "{shown}");
    }

    #[test]
    fn chapter_counts_failures_and_goes_on() {
        let out = std::env::temp_dir().join(format!("unisono-report-{}", std::process::id()));
        let mut report = Report::new(&out).expect("a folder");
        for program in ["false", "no-such-program", "true"] {
            report.chapter(program, program, &mut Command::new(program)).expect("written");
        }
        let text = std::fs::read_to_string(out.join("README.md")).expect("a summary");
        assert_eq!(report.failures(), 2);
        assert!(text.contains("## true") && text.contains("passed") && text.contains("**failed"), "{text}");
        std::fs::remove_dir_all(out).expect("removed");
    }
}
