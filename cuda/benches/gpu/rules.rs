//! Rules of the driver: which kernels run at once, which calls wait for a kernel, and what a
//! capture refuses.
//!
//! Each rule is tried in a process that may hang. One process tries all rules as long as none does.

mod capture;
mod overlap;
mod raw;
mod spinner;
mod waits;

use crate::rows::print;
use crate::{BenchResult, Options};
use raw::Driver;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A rule, and how it is tried. The result is a row without the name of the rule.
struct Rule {
    name: &'static str,
    ask: fn(&Driver) -> BenchResult<Value>,
}

/// In the order of their value.
const RULES: &[Rule] = &[
    Rule { name: "overlap plain 2", ask: |driver| overlap::grids(driver, overlap::Launch::Plain, 2) },
    Rule {
        name: "overlap cooperative 2",
        ask: |driver| overlap::grids(driver, overlap::Launch::Cooperative, 2),
    },
    Rule { name: "overlap graph 2", ask: |driver| overlap::grids(driver, overlap::Launch::Graph, 2) },
    Rule { name: "overlap plain 8", ask: |driver| overlap::grids(driver, overlap::Launch::Plain, 8) },
    Rule {
        name: "overlap cooperative 8",
        ask: |driver| overlap::grids(driver, overlap::Launch::Cooperative, 8),
    },
    Rule { name: "overlap graph 8", ask: |driver| overlap::grids(driver, overlap::Launch::Graph, 8) },
    Rule { name: "cuMemAlloc", ask: waits::alloc },
    Rule { name: "cuMemHostAlloc", ask: waits::pin },
    Rule { name: "cuMemFree", ask: waits::free },
    Rule { name: "cuMemFreeHost", ask: waits::unpin },
    Rule { name: "pageable copy to the GPU", ask: waits::to_gpu },
    Rule { name: "pageable copy to the host", ask: waits::to_host },
    Rule { name: "module load", ask: waits::module },
    Rule { name: "stream creation", ask: waits::stream },
    Rule { name: "event creation", ask: waits::event },
    Rule { name: "full queue", ask: waits::full_queue },
    Rule { name: "capture cuEventQuery", ask: capture::event_query },
    Rule { name: "capture cuStreamQuery", ask: capture::stream_query },
    Rule { name: "capture cuMemAlloc", ask: capture::alloc },
    Rule { name: "capture cuMemHostAlloc", ask: capture::pin },
    Rule { name: "capture cuEventRecord", ask: capture::event_record },
    Rule { name: "capture copy of pageable memory", ask: capture::copy },
    Rule { name: "capture cuEventCreate", ask: capture::event_create },
    Rule { name: "IPC of 4 KiB", ask: ipc },
];

/// Streams until a kernel waits for one of another stream: depends on the number of queues.
const STREAMS: &[Rule] = &[Rule { name: "streams", ask: overlap::streams }];

pub(crate) fn run(options: &Options) -> BenchResult {
    ask_all(RULES, options)
}

pub(crate) fn run_streams(options: &Options) -> BenchResult {
    ask_all(STREAMS, options)
}

/// Asks all rules in processes of their own. After one that hangs, the next process goes on behind
/// it.
fn ask_all(rules: &[Rule], options: &Options) -> BenchResult {
    let mut pending: Vec<&str> = rules.iter().map(|rule| rule.name).collect();
    while !pending.is_empty() {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--device", if options.software { "software" } else { "cuda" }]);
        command.args(pending.iter().flat_map(|name| ["--rule", *name]));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = channel();
        let output = child.stdout.take().ok_or("no output")?;
        let reader = std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let outcome = loop {
            match lines.recv_timeout(LIMIT) {
                Ok(line) => {
                    println!("{line}");
                    // Rows come in the order of the rules.
                    if line.starts_with('{') {
                        pending.remove(0);
                    }
                }
                Err(RecvTimeoutError::Timeout) => break "hangs",
                Err(RecvTimeoutError::Disconnected) => break "ends the process",
            }
        };
        let _ = child.kill();
        let _ = (child.wait(), reader.join());
        if !pending.is_empty() {
            let name = pending.remove(0);
            // Kernels that hang do not run at once. Any other call has no answer.
            let answer = name.starts_with("overlap").then_some(false);
            print(&row(name, json!({ "answer": answer, "outcome": outcome })));
        }
    }
    Ok(())
}

/// Asks these rules in this process.
pub(crate) fn child(names: &[String]) -> BenchResult {
    let driver = Driver::open()?;
    for name in names {
        let Some(rule) = RULES.iter().chain(STREAMS).find(|rule| rule.name == name) else { continue };
        let answer = (rule.ask)(&driver).unwrap_or_else(|error| json!({ "error": error.to_string() }));
        print(&row(rule.name, answer));
    }
    Ok(())
}

/// Adds what the name of a rule says to its answer.
fn row(name: &str, answer: Value) -> Value {
    let mut row = match name.split_once(' ') {
        Some(("overlap", kind)) => {
            let (launch, grids) = kind.split_once(' ').unwrap_or((kind, ""));
            json!({ "rule": "overlap", "launch": launch, "grids": grids.parse::<u32>().unwrap_or_default() })
        }
        Some(("capture", call)) => json!({ "rule": "refused by a GLOBAL capture", "call": call }),
        _ if waits::NAMES.contains(&name) => json!({ "rule": "waits for a kernel", "call": name }),
        _ => json!({ "rule": name }),
    };
    if let (Some(row), Value::Object(answer)) = (row.as_object_mut(), answer) {
        row.extend(answer);
    }
    row
}

/// Two small buffers: their handles, and the range that a handle opens.
fn ipc(driver: &Driver) -> BenchResult<Value> {
    let (memory, other) = (driver.alloc(4096)?, driver.alloc(4096)?);
    let (first, second) = (driver.export(memory)?, driver.export(other)?);
    let (base, bytes) = driver.range(other)?;
    let answer = json!({
        "answer": first == second, "range_bytes": bytes, "offset": other - base,
        "apart": other.abs_diff(memory),
    });
    driver.free(memory)?;
    driver.free(other)?;
    Ok(answer)
}

/// For one rule.
const LIMIT: Duration = Duration::from_secs(6);
