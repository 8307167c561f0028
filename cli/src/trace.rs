//! `unisono trace`: merges the traces in `UNISONO_TRACE_DIR` into one file for Perfetto.

use crate::files;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Files that ranks wrote into the folder of `UNISONO_TRACE_DIR`, or such folders.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// The file, for ui.perfetto.dev.
    #[arg(short, long, default_value = "trace.json")]
    out: PathBuf,
}

/// Trace of one communicator of one rank.
struct TraceFile {
    file: PathBuf,
    /// Host and process.
    process: String,
    /// Nanoseconds since 1970 to which its times are added.
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

/// Writes the one file, and says what is in it.
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

/// Writes the events of all parts to `file`; how many operations there were.
fn write(file: &Path, parts: &[TraceFile], processes: &[&str], begun_ns: u64) -> io::Result<u64> {
    let mut out = BufWriter::new(File::create(file)?);
    let mut operations = 0;
    writeln!(out, "[")?;
    for part in parts {
        let process = processes.iter().position(|process| *process == part.process).unwrap_or_default();
        operations += part.copy_events(process + 1, begun_ns, &mut out)?;
    }
    // The format wants no comma after the last event.
    writeln!(out, "{{\"name\":\"end\",\"ph\":\"M\",\"pid\":0}}]")?;
    out.flush()?;
    Ok(operations)
}

impl TraceFile {
    fn open(file: PathBuf) -> Result<Self, String> {
        let head = lines(&file).map_err(|error| format!("{}: {error}", file.display()))?.next();
        let head = head.and_then(|line| serde_json::from_str::<TraceHeader>(event(&line)).ok());
        let Some(TraceHeader { args: HeaderArgs { name, begun_ns } }) = head else {
            return Err(format!("{}: this is no trace that a rank wrote", file.display()));
        };
        Ok(Self { file, process: name, begun_ns })
    }

    /// Writes the events as events of `process`, relative to `begun_ns`, and returns the number of
    /// operations.
    fn copy_events(&self, process: usize, begun_ns: u64, out: &mut impl Write) -> io::Result<u64> {
        let (mut operations, later) = (0, (self.begun_ns - begun_ns) as f64 / 1e3);
        // The last line of a process that was killed may be half a line.
        let parsed = |line: String| serde_json::from_str::<Map<String, Value>>(event(&line)).ok();
        for mut moved in lines(&self.file)?.map_while(parsed) {
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

/// The lines with events.
fn lines(file: &Path) -> io::Result<impl Iterator<Item = String>> {
    Ok(BufReader::new(File::open(file)?).lines().map_while(Result::ok).skip(1))
}

/// Returns an event without the separator behind it.
fn event(line: &str) -> &str {
    line.trim_end().trim_end_matches(',')
}
