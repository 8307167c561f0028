//! `unisono trace`: merges the traces in `UNISONO_TRACE_DIR` into one file for Perfetto.

use crate::files;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Files that ranks wrote into the folder of `UNISONO_TRACE_DIR`, or whole folders of such
    /// files.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// File to write, which ui.perfetto.dev can show.
    #[arg(short, long, default_value = "trace.json")]
    out: PathBuf,
}

/// Trace of one communicator of one rank.
struct TraceFile {
    file: PathBuf,
    /// Host and process.
    process: String,
    /// Start of the trace in nanoseconds since 1970. The times in the file are relative to it.
    begun_ns: u64,
}

/// The first event of a file.
#[derive(Deserialize)]
struct TraceHeader {
    args: HeaderArgs,
}

#[derive(Deserialize)]
struct HeaderArgs {
    name: String,
    begun_ns: u64,
}

/// Writes the merged file, and prints what it contains.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    let paths = files::expand_paths(&arguments.traces, |name| name.ends_with(files::TRACE_SUFFIX))?;
    let (parts, damaged) = files::partition(paths.into_iter().map(TraceFile::open));
    files::print_damaged(&damaged);
    let Some(begun_ns) = parts.iter().map(|part| part.begun_ns).min() else {
        return Err(
            "there are no traces: ranks write them into the folder that UNISONO_TRACE_DIR names".to_owned()
        );
    };
    let mut processes: Vec<&str> = parts.iter().map(|part| part.process.as_str()).collect();
    processes.sort_unstable();
    processes.dedup();
    let file = arguments.out.display();
    let operations =
        write(&arguments.out, &parts, &processes, begun_ns).map_err(|error| format!("{file}: {error}"))?;
    println!(
        "{operations} operations of {} communicators in {} processes: {file}, for https://ui.perfetto.dev",
        parts.len(),
        processes.len(),
    );
    Ok(0)
}

/// Writes the events of all parts to `file`, and returns the number of operations.
fn write(file: &Path, parts: &[TraceFile], processes: &[&str], begun_ns: u64) -> io::Result<u64> {
    let mut out = BufWriter::new(File::create(file)?);
    let mut operations = 0;
    writeln!(out, "[")?;
    for part in parts {
        let process = processes.iter().position(|process| *process == part.process).unwrap_or_default();
        // Process 0 is that of the closing event.
        operations += part.copy_events(open(&part.file)?, (process + 1, begun_ns), &mut out)?;
    }
    // The format wants no comma after the last event.
    writeln!(out, "{{\"name\":\"end\",\"ph\":\"M\",\"pid\":0}}]")?;
    out.flush()?;
    Ok(operations)
}

impl TraceFile {
    fn open(file: PathBuf) -> Result<Self, String> {
        let head = open(&file).map_err(|error| format!("{}: {error}", file.display()))?.next();
        let Some(HeaderArgs { name, begun_ns }) = head.and_then(|line| header(&line)) else {
            return Err(format!("{}: this is no trace that a rank wrote", file.display()));
        };
        Ok(Self { file, process: name, begun_ns })
    }

    /// Writes the events in these lines as events of `process`, relative to `begun_ns`, and returns
    /// the number of operations.
    fn copy_events(
        &self,
        lines: impl Iterator<Item = String>,
        (process, begun_ns): (usize, u64),
        out: &mut impl Write,
    ) -> io::Result<u64> {
        let (mut operations, later) = (0, (self.begun_ns - begun_ns) as f64 / 1e3);
        // The last line of a process that was killed may be half a line.
        let parsed = |line: String| serde_json::from_str::<Map<String, Value>>(event(&line)).ok();
        for mut moved in lines.map_while(parsed) {
            // Processes of different hosts can have the same number, and a viewer would merge them.
            moved.insert("pid".to_owned(), process.into());
            if let Some(time) = moved.get("ts").and_then(Value::as_f64) {
                moved.insert("ts".to_owned(), (time + later).into());
                operations += 1;
            }
            writeln!(out, "{},", Value::from(moved))?;
        }
        Ok(operations)
    }
}

/// Returns the lines with events in a file.
fn open(file: &Path) -> io::Result<impl Iterator<Item = String>> {
    Ok(lines(BufReader::new(File::open(file)?)))
}

/// Returns the lines with events, up to one that is longer than any event.
fn lines(mut text: impl BufRead) -> impl Iterator<Item = String> {
    let line = move || {
        let mut line = String::new();
        let read = text.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        read.is_ok_and(|count| (1..LINE_BYTES_MAX).contains(&(count as u64))).then_some(line)
    };
    std::iter::from_fn(line).skip(1)
}

/// Returns the contents of the first event, which describes the other events.
fn header(line: &str) -> Option<HeaderArgs> {
    serde_json::from_str(event(line)).ok().map(|TraceHeader { args }| args)
}

/// Parses bytes as the trace of a rank, and copies its events with another process id and other
/// times.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some(HeaderArgs { name, begun_ns }) = lines(bytes).next().and_then(|line| header(&line)) else {
        return;
    };
    let part = TraceFile { file: PathBuf::new(), process: name, begun_ns };
    let (mut moved, begun) = (Vec::new(), begun_ns / 2);
    let operations = part.copy_events(lines(bytes), (7, begun), &mut moved).expect("memory is written");
    let events = moved.split_inclusive(|&byte| byte == b'\n');
    let events: Vec<Map<String, Value>> =
        events.map(|line| serde_json::from_slice(&line[..line.len() - 2]).expect("an event")).collect();
    assert!(events.iter().all(|event| event["pid"] == 7) && operations <= events.len() as u64);
}

/// Longest line that is read. The limit is needed because a file can be a link to an endless file.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Returns an event without the separator that follows it.
fn event(line: &str) -> &str {
    line.trim_end().trim_end_matches(',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_one_that_is_too_long() {
        let endless = io::Cursor::new(b"[\nfirst\n".to_vec()).chain(io::repeat(b'x'));
        assert_eq!(lines(BufReader::new(endless)).collect::<Vec<_>>(), ["first\n"]);
        assert_eq!(lines(&b"[\nfirst\nlast"[..]).collect::<Vec<_>>(), ["first\n", "last"]);
        assert_eq!(lines(&b""[..]).count(), 0);
    }
}
