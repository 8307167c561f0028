//! `unisono perf` reports wrong results, and only those.

use std::process::{Command, Output};

const DATA: [&str; 9] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "sendrecv",
];

fn perf(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("perf").args(arguments.split(' ')).env_remove("RANK").output().expect("it starts")
}

fn rows(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn any_number_of_iterations_and_operations_verifies() {
    // In place, a result must not be mistaken for the input of the verified operation.
    for collective in DATA {
        for counts in ["-n 1", "-n 2", "-n 5", "-n 20", "-n 3 -m 4", "-n 3 -m 3 -z 0"] {
            let arguments = format!("{collective} -t 2 -b 40 -e 4K -f 100 -w 1 {counts}");
            let output = perf(&arguments);
            assert!(output.status.success(), "{arguments}: {output:?}");
        }
    }
}

#[test]
fn one_corrupted_element_is_counted_once_in_each_half() {
    for collective in DATA {
        let output = perf(&format!("{collective} -t 3 -b 3K -e 3K -n 2 -w 0 --corrupt"));
        assert_eq!(output.status.code(), Some(1), "{collective}");
        let row = rows(&output).remove(0);
        let wrong: Vec<_> =
            [8, 12].map(|column| row.split_whitespace().nth(column).expect("a column")).into();
        let in_place = if collective == "sendrecv" { "N/A" } else { "2" };
        assert_eq!(wrong, ["2", in_place], "{collective}: two verifications in each half: {row}");
    }
}

#[test]
fn no_check_reports_no_verdict() {
    let output = perf("all_reduce -t 2 -b 64 -e 64 -n 2 -c 0 --corrupt");
    assert!(output.status.success());
    assert_eq!(rows(&output)[0].matches("N/A").count(), 2);
}

#[test]
fn a_barrier_has_one_row_and_no_size() {
    let output = perf("barrier -t 3 -n 10");
    let rows = rows(&output);
    assert!(output.status.success() && rows.len() == 1, "{rows:?}");
    assert_eq!(rows[0].split_whitespace().next(), Some("0"));
}

#[test]
fn explicit_ranks_override_launcher_environment() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(["perf", "barrier", "--ranks", "2", "-n", "4"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "64"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "9")]);
    let output = command.output().expect("it starts");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("# 2 ranks"));
}

#[test]
fn invalid_environment_variable_is_named() {
    for (name, value) in [("RANK", "one"), ("RANK", "2"), ("WORLD_SIZE", "two"), ("MASTER_PORT", "-1")] {
        // It is told before it waits for anybody.
        let output = Command::new(env!("CARGO_BIN_EXE_unisono"))
            .args(["perf", "all_reduce"])
            .envs([
                ("UNISONO_JOIN_TIMEOUT_MS", "3600000"),
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", "29500"),
            ])
            .env(name, value)
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(&format!("{name}={value}")), "{name}: {text}");
    }
}
