//! Failed ranks leave flight records, and `unisono analyze` reports the rank that made a different
//! call.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use unisono::{Communicator, Config, Sum};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// A folder that is gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("unisono-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn analyze(paths: &[&Path]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(UNISONO).arg("analyze").args(paths).output().expect("it starts");
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

/// Four ranks do this and fail; what `analyze` says then.
fn failing(name: &str, body: impl Fn(&Communicator) -> unisono::Result<()> + Sync) -> String {
    let folder = Folder::new(name);
    let timeout = Duration::from_millis(300);
    let config = Config::default().with_timeout(timeout).with_flight_recorder_dir(Some(folder.0.clone()));
    std::thread::scope(|scope| {
        for comm in Communicator::builder().config(&config).local(4).expect("threads") {
            let body = &body;
            scope.spawn(move || {
                body(&comm).expect_err("they disagree");
                // Every rank stays until all have failed.
                std::thread::sleep(Duration::from_millis(200));
            });
        }
    });
    let (code, text) = analyze(&[&folder.0]);
    assert_eq!(code, Some(1), "{text}");
    text
}

#[test]
fn the_first_call_that_differs_is_named() {
    let text = failing("differs", |comm| {
        comm.all_reduce(&mut [1.0f32; 100], Sum)?;
        comm.broadcast(&mut [1.0f32; 100], usize::from(comm.rank() == 2))?;
        comm.barrier()
    });
    let first = text.lines().find(|line| line.contains("first disagreement")).expect(&text);
    assert!(
        first.contains("ranks 0-1, 3 called broadcast #1") && first.contains("rank 2 called broadcast #1")
    );
    assert!(first.contains("root 1"), "{first}");
}

#[test]
fn straggler_is_named() {
    let text = failing("behind", |comm| {
        comm.barrier()?;
        match comm.rank() {
            3 => comm.recv(&mut [0u8; 10], 0),
            _ => comm.all_reduce(&mut [1.0f32; 100], Sum),
        }
    });
    assert!(text.contains("behind: rank 3 did not come to all_reduce #1"), "{text}");
    assert!(text.contains("rank 3 on ") && text.contains("failed in send/recv #0"), "{text}");
}

#[test]
fn records_are_written_to_configured_dir() {
    let folder = Folder::new("processes");
    let ended = Command::new(UNISONO)
        .args(["run", "-n", "3", "--", UNISONO, "perf", "all_reduce", "-b", "4K", "-e", "4K", "--mismatch"])
        .env("UNISONO_FLIGHT_RECORDER_DIR", &folder.0)
        // The folder may hold traces, too.
        .env("UNISONO_TRACE_DIR", &folder.0)
        .output()
        .expect("it starts");
    assert!(!ended.status.success());
    let (code, text) = analyze(&[&folder.0]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("3 ranks over shm") && text.contains("first disagreement"), "{text}");
    assert!(text.contains("1024 x float") && text.contains("1025 x float"), "{text}");
}

#[test]
fn invalid_record_is_named() {
    let folder = Folder::new("garbage");
    std::fs::create_dir_all(&folder.0).expect("a folder");
    assert!(analyze(&[&folder.0]).1.contains("UNISONO_FLIGHT_RECORDER_DIR"));
    let file = folder.0.join("a.json");
    std::fs::write(&file, "{\"rank\": 1}").expect("a file");
    let (code, text) = analyze(&[&file]);
    assert!(code == Some(1) && text.contains("a.json is no flight record"), "{text}");
}

/// A record comes from a file that anybody may have written.
#[test]
fn records_steer_no_terminal() {
    let folder = Folder::new("escapes");
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let file = folder.0.join("a.json");
    let record = r#"{"communicator":"c","epoch":0,"rank":0,"ranks":1,"host":"\u001b]0;title\u0007","transport":"shm",
        "now_ms":1,"enqueued":0,"error":"\u001b[2J","operations":[]}"#;
    std::fs::write(&file, record).expect("a file");
    std::fs::write(folder.0.join("b\u{1b}[31m.json"), "{}").expect("a file");
    let (_, text) = analyze(&[&folder.0]);
    assert!(text.contains("\\u{1b}]0;title\\u{7}") && text.contains("b\\u{1b}[31m.json"), "{text}");
    assert_eq!(text.find('\u{1b}'), None, "{text}");
}
