//! Every rank writes a trace, and `unisono trace` merges the traces.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Barrier;
use unisono::{Communicator, Config, Sum};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// A folder that is gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("unisono-trace-{name}-{}", std::process::id())))
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the output of `unisono trace` for `paths`, and the events of the merged file.
fn merge(folder: &Folder, paths: &[&Path]) -> (String, Vec<Value>) {
    let out = folder.0.join("together.json");
    let Output { status, stdout, stderr } =
        Command::new(UNISONO).arg("trace").args(paths).arg("-o").arg(&out).output().expect("it starts");
    let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{said}");
    let text = std::fs::read_to_string(&out).expect("a file");
    (said, serde_json::from_str(&text).expect("an array of events"))
}

/// An operation at one rank, in microseconds.
#[derive(Debug)]
struct Span {
    process: u64,
    start: f64,
    end: f64,
}

/// The parts of each operation with this name, by its number.
fn operations(events: &[Value], name: &str) -> BTreeMap<u64, Vec<Span>> {
    let mut operations = BTreeMap::<_, Vec<_>>::new();
    for event in events.iter().filter(|event| event["ph"] == "X" && event["name"] == name) {
        let sequence = event["args"]["sequence"].as_u64().expect("a number");
        let (start, long) = (event["ts"].as_f64().expect("a time"), event["dur"].as_f64().expect("a time"));
        let process = event["pid"].as_u64().expect("a process");
        operations.entry(sequence).or_default().push(Span { process, start, end: start + long });
    }
    operations
}

#[test]
fn merged_traces_share_one_clock() {
    let folder = Folder::new("processes");
    let perf = ["perf", "all_reduce", "-b", "8", "-e", "256K", "-f", "32", "-w", "1"];
    let ended = Command::new(UNISONO)
        .args(perf)
        .args(["-n", "5", "--ranks", "3"])
        .env("UNISONO_TRACE_DIR", &folder.0)
        .output()
        .expect("it starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let (said, events) = merge(&folder, &[&folder.0]);
    assert!(said.contains("in 3 processes"), "{said}");
    let sums = operations(&events, "all_reduce");
    assert!(sums.len() > 3 * 5, "all_reduce of three sizes, often: {}", sums.len());
    for (sequence, ranks) in sums {
        let processes: BTreeSet<u64> = ranks.iter().map(|part| part.process).collect();
        assert_eq!((processes.len(), ranks.len()), (3, 3), "all_reduce #{sequence}");
        // A sum cannot end on any rank before all ranks have entered it.
        let last_in = ranks.iter().map(|part| part.start).fold(f64::MIN, f64::max);
        let first_out = ranks.iter().map(|part| part.end).fold(f64::MAX, f64::min);
        assert!(last_in <= first_out + CLOCK_SKEW_MAX_US, "all_reduce #{sequence}: {ranks:?}");
    }
}

#[test]
fn failed_op_has_reason_and_partial_line_is_skipped() {
    let folder = Folder::new("failed");
    let config = Config::default().with_trace_dir(Some(folder.0.clone()));
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for comm in Communicator::builder().config(&config).local(2).expect("threads") {
            let together = &together;
            scope.spawn(move || {
                comm.all_reduce(&mut [1.0f32; 100], Sum).expect("a sum");
                // The other rank may still be on its way out of its sum, and an abort would make
                // that fail.
                together.wait();
                match comm.rank() {
                    0 => drop(comm.barrier().expect_err("the other one aborts")),
                    _ => comm.abort("enough"),
                }
            });
        }
    });
    // Cut the last line, as if the process had been killed while it wrote.
    for file in folder.files() {
        let text = std::fs::read_to_string(&file).expect("a trace");
        std::fs::write(&file, text + "{\"name\":\"barr").expect("a trace");
    }
    let (said, events) = merge(&folder, &[&folder.0]);
    assert!(said.starts_with("3 operations of 2 communicators in 1 processes"), "{said}");
    let failed: Vec<_> = events.iter().filter(|event| !event["args"]["error"].is_null()).collect();
    assert_eq!(failed.len(), 1, "{events:?}");
    assert!(failed[0]["name"] == "barrier" && failed[0]["args"]["error"].to_string().contains("enough"));
}

#[test]
fn invalid_trace_is_named() {
    let folder = Folder::new("garbage");
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let told = |path: &Path| {
        let Output { status, stderr, .. } =
            Command::new(UNISONO).arg("trace").arg(path).output().expect("it starts");
        assert!(!status.success());
        String::from_utf8_lossy(&stderr).into_owned()
    };
    assert!(told(&folder.0).contains("UNISONO_TRACE_DIR"));
    let file = folder.0.join("a.trace.json");
    std::fs::write(&file, "[\n{\"rank\": 1},\n").expect("a file");
    assert!(told(&folder.0).contains("a.trace.json: this is no trace"));
}

/// Largest difference between two readings of one clock by two processes.
const CLOCK_SKEW_MAX_US: f64 = 200.0;
