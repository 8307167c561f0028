//! Real processes that die, or disagree, in the middle of an operation.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");
/// Longer than anything takes that ends at all, on a busy machine.
const HANG: Duration = Duration::from_secs(100);
/// A timeout of ranks, in milliseconds, that is far beyond it.
const NEVER_MS: &str = "3600000";

/// Starts four ranks that measure; gives the launcher and the processes by rank.
fn start(arguments: &[&str]) -> (Child, Vec<u32>, BufReader<std::process::ChildStderr>) {
    let mut job = Command::new(UNISONO)
        .args(["run", "-n", "4", "--verbose", "--", UNISONO, "perf", "all_reduce"])
        .args(arguments)
        .env("UNISONO_TIMEOUT_MS", NEVER_MS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut errors = BufReader::new(job.stderr.take().expect("piped"));
    let pids = (0..4).map(|rank| {
        let mut line = String::new();
        errors.read_line(&mut line).expect("text");
        let pid = line.trim().strip_prefix(&format!("# rank {rank} pid ")).expect("a pid").to_owned();
        pid.parse().expect("a number")
    });
    let pids = pids.collect();
    (job, pids, errors)
}

fn exists(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Names of all abstract sockets and shared segments of this host.
fn shm_names() -> HashSet<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let sockets = table.lines().filter_map(|line| Some(line.split_once("@unisono-")?.1.to_owned()));
    let segments = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    sockets.chain(segments.map(|segment| segment.path().display().to_string())).collect()
}

/// Waits until every resource created since `earlier` is gone, and returns whether all are.
///
/// Resources of other jobs on this host disappear when those jobs end.
fn nothing_new_stays(earlier: &HashSet<String>) -> bool {
    let mut new: HashSet<String> = shm_names().difference(earlier).cloned().collect();
    let begun = Instant::now();
    while !new.is_empty() && begun.elapsed() < HANG {
        std::thread::sleep(Duration::from_millis(20));
        let now = shm_names();
        new.retain(|name| now.contains(name));
    }
    new.is_empty()
}

#[test]
fn killed_rank_is_named_by_every_survivor() {
    for transport in ["shm", "tcp"] {
        let earlier = shm_names();
        // A small size first, whose row says that ranks are at work, then minutes of a large one.
        let sizes =
            ["-b", "64K", "-e", "64M", "-f", "1024", "-n", "1000", "-c", "0", "--transport", transport];
        let (mut job, pids, errors) = start(&sizes);
        let mut rows = BufReader::new(job.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(rows.any(|line| !line.starts_with("[0] #")), "{transport}: the small size has no row");
        std::thread::sleep(Duration::from_secs(1));
        assert!(pids.iter().all(|&pid| exists(pid)), "the job ended early");
        Command::new("kill").args(["-9", &pids[2].to_string()]).status().unwrap();
        let killed = Instant::now();
        let survivors = [0, 1, 3].map(|rank| (rank, format!("[{rank}] unisono: rank {rank} on ")));
        let mut named = Vec::new();
        for line in errors.lines().map_while(Result::ok) {
            for (rank, start) in &survivors {
                if line.starts_with(start) && line.contains("rank 2 is gone") {
                    assert!(killed.elapsed() < HANG, "{transport}: rank {rank}, {:?}", killed.elapsed());
                    named.push(*rank);
                }
            }
        }
        named.sort_unstable();
        assert_eq!(named, [0, 1, 3], "{transport}: not every survivor named rank 2");
        assert_eq!(job.wait().unwrap().code(), Some(128 + 9));
        assert!(pids.iter().all(|&pid| !exists(pid)), "{transport}: a process is left");
        assert!(nothing_new_stays(&earlier), "{transport}: a socket or segment is left");
    }
}

#[test]
fn count_mismatch_is_named_by_every_rank() {
    for transport in ["shm", "tcp"] {
        let sizes = ["-b", "4M", "-e", "4M", "--mismatch", "--transport", transport];
        let begun = Instant::now();
        let (mut job, _, errors) = start(&sizes);
        let lines: Vec<String> = errors.lines().map_while(Result::ok).collect();
        assert!(begun.elapsed() < HANG, "{transport}: took {:?}", begun.elapsed());
        for rank in 0..4 {
            let start = format!("[{rank}] unisono: rank {rank} on ");
            let named = |line: &&String| line.contains("1048576 x float") && line.contains("1048577 x float");
            let found = lines.iter().filter(|line| line.starts_with(&start)).any(|line| named(&line));
            assert!(found, "{transport}: rank {rank} does not name both counts:\n{}", lines.join("\n"));
        }
        assert_eq!(job.wait().unwrap().code(), Some(1));
    }
}

#[test]
fn stopped_rank_is_warned_about() {
    for transport in ["shm", "tcp"] {
        let sizes = ["-b", "64K", "-e", "64K", "-n", "100000000", "-c", "0", "--transport", transport];
        let (mut job, pids, errors) = start(&sizes);
        // The first line of the table: ranks have met.
        let mut rows = BufReader::new(job.stdout.take().expect("piped")).lines().map_while(Result::ok);
        rows.next().expect("a table");
        std::thread::sleep(Duration::from_millis(500));
        Command::new("kill").args(["-STOP", &pids[2].to_string()]).status().unwrap();
        let stopped = Instant::now();
        let warned = |line: &String| line.contains("WARN") && line.contains("waiting for rank 2");
        let line = errors.lines().map_while(Result::ok).find(warned);
        assert!(line.is_some(), "{transport}: no warning");
        let elapsed = stopped.elapsed().as_secs_f64();
        assert!((3.5..HANG.as_secs_f64()).contains(&elapsed), "{transport}: warned after {elapsed} s");
        job.kill().unwrap();
        job.wait().unwrap();
    }
}
