//! Settings of other libraries that ranks do without: docs/book/src/not_needed.md.

use std::process::{Command, Output};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

fn shell(script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("UNISONO", UNISONO).env_remove("RANK").output().expect("it starts")
}

/// Returns true if all results of a verified run are right.
fn is_right(output: &Output) -> bool {
    output.status.success()
        && String::from_utf8_lossy(&output.stdout).contains("# Out of bounds values : 0 OK")
}

const PERF: &str = "exec \"$UNISONO\" perf all_reduce -b 1M -e 1M -n 2 -w 1 --ranks 3";

#[test]
fn ranks_need_no_locked_memory_and_no_folder() {
    for transport in ["shm", "tcp"] {
        let folder = format!("/nonexistent/{}", "long".repeat(60));
        let script =
            format!("ulimit -l 0; export TMPDIR={folder} HOME={folder}; {PERF} --transport {transport}");
        let output = shell(&script);
        assert!(is_right(&output), "{transport}: {output:?}");
    }
}

#[test]
fn ranks_need_no_room_in_dev_shm() {
    let full = "mount -t tmpfs -o size=4k none /dev/shm && head -c 1M /dev/zero > /dev/shm/full;";
    if !shell("unshare --mount true").status.success() {
        return println!("SKIPPED: a file system of one's own needs root");
    }
    let output = shell(&format!("exec unshare --mount sh -c '{full} {PERF} --transport shm'"));
    assert!(is_right(&output), "{output:?}");
}

#[test]
fn ranks_may_run_on_every_core_of_the_launcher() {
    let cores = "grep Cpus_allowed_list /proc/self/status";
    let alone = shell(cores);
    let ranks = shell(&format!("\"$UNISONO\" run -n 2 --no-prefix -- {cores}"));
    assert!(ranks.status.success(), "{ranks:?}");
    assert_eq!(String::from_utf8_lossy(&ranks.stdout), String::from_utf8_lossy(&alone.stdout).repeat(2));
}

#[test]
fn jobs_on_one_host_need_no_ports_of_their_own() {
    let tcp = PERF.replace("exec ", "") + " --transport tcp";
    let output = shell(&format!("{tcp} & first=$!; {tcp}; second=$?; wait $first && exit $second"));
    let right = String::from_utf8_lossy(&output.stdout).matches("# Out of bounds values : 0 OK").count();
    assert!(output.status.success() && right == 2, "{output:?}");
}
