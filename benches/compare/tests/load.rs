//! The load of the comparison program: when its processes run, and that they end.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Limit that only ends a hang.
const HANG: Duration = Duration::from_secs(60);
/// Prints what the comparison takes from `unisono perf`, and how many loops run meanwhile.
const COUNTING: &str = r#"#!/bin/sh
case "$*" in *--help*|*--version*) exit 0 ;; esac
loops=0
for process in $(grep -lzx neighbor /proc/[0-9]*/cmdline 2>/dev/null); do
    if grep -qzx "$PPID" "$process" 2>/dev/null; then loops=$((loops + 1)); fi
done
echo "$loops" >> FOLDER/loops
for last; do :; done
echo '{"results": [{"size": 8, "out_of_place": {"time": 1.5, "nwrong": 0}, "roofline_us": 0.5}],' > "$last"
case "$*" in
    *--no-roofline*) echo '"roofline": {}}' >> "$last" ;;
    *) echo '"roofline": {"copy_gbs_all_cores": 40.0, "flag_latency_us": 0.1}}' >> "$last" ;;
esac
"#;
/// Says that it measures, and does so until it is ended.
const ENDLESS: &str = r#"#!/bin/sh
case "$*" in *--help*|*--version*) exit 0 ;; esac
echo $$ > FOLDER/measuring.part && mv FOLDER/measuring.part FOLDER/measuring
exec sleep 600
"#;

/// A folder of this test; the program there stands for `unisono`.
fn folder(name: &str, program: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("writable");
    let path = folder.join("unisono");
    let program = program.replace("FOLDER", &folder.display().to_string());
    std::fs::write(&path, program).expect("writable");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("own file");
    folder
}

/// The comparison of one data point, which finds no library.
fn compare(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-compare"));
    for (option, name) in [("--unisono", "unisono"), ("--cache", "cache"), ("--out", "record")] {
        command.arg(option).arg(folder.join(name));
    }
    command.args(["--only", "unisono", "--no-startup", "--more", "0", "--ranks", "3", "--sizes", "8"]);
    command.args(["--transport", "shm", "--collectives", "all_reduce"]).args(arguments);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Returns the loops that a process has started.
fn loops_of(parent: u32) -> Vec<i32> {
    let processes = read_dir("/proc").expect("Linux").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|&process| is_loop_of(process, parent)).collect()
}

fn is_loop_of(process: i32, parent: u32) -> bool {
    let command = read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
    command.contains(&format!("\0neighbor\0{parent}\0"))
}

/// Returns whether a process has ended. One that nobody has waited for has an empty command line.
fn has_ended(process: i32, parent: u32) -> bool {
    !is_loop_of(process, parent)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a comparison beside two loops and returns it, its loops, and the process that measures.
fn measuring(folder: &Path) -> (Child, Vec<i32>, i32) {
    let mut command = compare(folder, &["--busy", "2", "--rounds", "1"]);
    let child = command.stdout(Stdio::null()).spawn().expect("built");
    let marker = folder.join("measuring");
    wait_until("the measurement begins", || marker.exists());
    let measuring = read_to_string(&marker).expect("a marker").trim().parse().expect("a process");
    let loops = loops_of(child.id());
    (child, loops, measuring)
}

fn signal(process: i32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.expect("kill is there").success());
}

fn loops_end_after(name: &str, signal_name: &str) {
    let folder = folder(name, ENDLESS);
    let (mut child, loops, measuring) = measuring(&folder);
    assert_eq!(loops.len(), 2, "{loops:?}");
    let parent = child.id();
    signal(parent as i32, signal_name);
    child.wait().expect("a child");
    wait_until("a loop outlives the comparison", || loops.iter().all(|&pid| has_ended(pid, parent)));
    signal(measuring, "KILL");
    std::fs::remove_dir_all(folder).expect("own folder");
}

#[test]
fn loops_end_with_a_killed_comparison() {
    loops_end_after("killed", "KILL");
}

#[test]
fn loops_end_with_an_interrupted_comparison() {
    loops_end_after("interrupted", "INT");
}

#[test]
fn loops_run_in_loaded_turns_only() {
    let folder = folder("turns", COUNTING);
    let output = compare(&folder, &["--busy", "0,2", "--rounds", "2"]).output().expect("built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // More ranks than cores or not, quiet and loaded take turns in each round.
    let counted = read_to_string(folder.join("loops")).expect("counted");
    assert!(counted.starts_with("0\n2\n0\n2\n"), "{counted}");
    let record = read_to_string(folder.join("record/README.md")).expect("a record");
    assert!(record.contains("## Under load: 2 busy loops"), "{record}");
    assert!(record.contains("| 3 | 8 B | 1.50 | – | – | 1.50 | – | – | – | 1.00 |"), "{record}");
    std::fs::remove_dir_all(folder).expect("own folder");
}

#[test]
fn loads_out_of_range_are_refused() {
    let folder = folder("refused", COUNTING);
    for (options, why) in [
        (["--busy", "two"], "is not a number from 0 to 1024"),
        (["--busy-nice", "20"], "20 is not in -20..=19"),
        (["--jobs", "0"], "is not a number from 1 to 8"),
        (["--cpu-quota", "0"], "0 is not in 1..=100"),
    ] {
        let output = compare(&folder, &options).output().expect("built");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(why), "{options:?}: {text}");
    }
    std::fs::remove_dir_all(folder).expect("own folder");
}
