//! `unisono perf` with real processes and with threads.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

const COLLECTIVES: [&str; 10] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "sendrecv",
    "barrier",
];

fn perf(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.arg("perf").args(arguments).env_remove("RANK").output().expect("it starts")
}

/// Returns the output of a run without errors.
fn successful(arguments: &[&str]) -> String {
    let output = perf(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}\n{text}\n{errors}");
    text
}

/// Returns the table of a run without errors, which says that all results are right.
fn good(arguments: &[&str]) -> String {
    let text = successful(arguments);
    assert!(text.contains("# Out of bounds values : 0 OK"), "{arguments:?}\n{text}");
    text
}

#[test]
fn collectives_are_correct_over_every_transport() {
    for transport in ["shm", "tcp"] {
        for ranks in ["1", "2", "4"] {
            for collective in COLLECTIVES {
                let size = ["-b", "8", "-e", "256K", "-f", "32", "-n", "4", "-w", "1"];
                good(&[&[collective, "--ranks", ranks, "--transport", transport], &size[..]].concat());
            }
        }
    }
}

/// A size beyond memory is an error that names it, and no process is killed or aborts.
#[test]
fn sizes_beyond_memory_are_told_with_a_remedy() {
    let list = ["--sizes", "65536G"];
    let range = ["-b", "65536G", "-e", "65536G"];
    for ranks in [["-t", "2"], ["--ranks", "2"]] {
        for sizes in [&list[..], &range] {
            for collective in ["all_reduce", "all_gather"] {
                let output = perf(&[&[collective], &ranks[..], sizes].concat());
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{ranks:?} {sizes:?}: {said}");
                assert!(said.contains("bytes for a size of 70368744177664, and "), "{said}");
                assert!(said.contains("bytes of memory are available there; give smaller sizes"), "{said}");
            }
        }
    }
}

/// The system refuses memory that the host has, or the host has not so much.
#[test]
fn sizes_beyond_a_limit_of_a_process_are_told_with_a_remedy() {
    let text = "ulimit -v 4194304; exec \"$0\" perf all_reduce -t 1 --sizes 5G -n 1 -w 0";
    let output = Command::new("sh").args(["-c", text, env!("CARGO_BIN_EXE_unisono")]).output().expect("sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("give smaller sizes (-e, --sizes)"), "{said}");
}

/// There are more sizes than memory holds, and the table begins all the same.
#[test]
fn endless_list_of_sizes_begins_at_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args([
        "perf",
        "all_reduce",
        "-t",
        "1",
        "-b",
        "8",
        "-e",
        "65536G",
        "-i",
        "8",
        "-n",
        "1",
        "-w",
        "0",
    ]);
    let mut perf = command.env_remove("RANK").stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(perf.stdout.take().expect("piped")).lines();
    let row = lines.map_while(Result::ok).find(|line| !line.starts_with('#'));
    perf.kill().expect("it runs");
    perf.wait().expect("it ran");
    assert!(row.is_some_and(|row| row.trim_start().starts_with("8 ")));
}

#[test]
fn tables_and_schedules_name_the_instruction_set() {
    let set = unisono_reducers::instruction_set();
    let table = good(&["all_reduce", "-t", "2", "--sizes", "64", "-n", "1", "-w", "0"]);
    let line = format!("# copies and reductions on the host: {set}");
    assert!(table.lines().any(|found| found == line), "`{line}` is not in\n{table}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    let output = command.args(["explain", "all_reduce"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = format!("copies and reductions on this host: {set}");
    assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
}

#[test]
fn encrypted_ranks_are_correct() {
    let arguments = ["all_reduce", "--ranks", "2", "--transport", "tcp", "-b", "8", "-e", "8M", "-f", "1024"];
    let text = good(&[&arguments[..], &["-n", "2", "-w", "1", "--encrypt"]].concat());
    assert!(text.contains("over tcp, TCP encrypted,"), "{text}");
}

#[test]
fn every_type_and_operation_is_right() {
    let sizes = ["-b", "64", "-e", "64K", "-f", "1024", "-n", "2", "-w", "1", "-t", "3"];
    for collective in ["all_reduce", "reduce_scatter", "reduce"] {
        let text = good(&[&[collective, "-d", "all", "-o", "all", "-r", "all"], &sizes[..]].concat());
        let roots = if collective == "reduce" { 3 } else { 1 };
        let rows = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rows, 12 * 6 * 2 * roots);
    }
}

/// Only where there is a C++ compiler, which builds the software device.
#[test]
fn software_device_is_correct() {
    if Command::new("g++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: needs a C++ compiler");
        return;
    }
    let sizes = ["--device", "software", "--sizes", "8,20000", "-n", "1", "-w", "0"];
    for collective in COLLECTIVES {
        let text = good(&[&[collective, "-t", "2"], &sizes[..]].concat());
        assert!(text.contains("unisono software device: not a GPU, times mean nothing"), "{text}");
    }
    // More ranks than the hardware queues that a program has by default.
    good(&[&["all_reduce", "-t", "8"], &sizes[..]].concat());
    good(&[&["all_reduce", "-N", "2"], &sizes[..]].concat());
    let text = good(&[&["all_reduce", "-t", "2", "-G", "2", "--report-roofline"], &sizes[..]].concat());
    assert!(text.contains("the driver copies"), "{text}");
    let large = ["--device", "software", "--sizes", "200000", "-n", "1", "-w", "0", "-R", "2", "-N", "2"];
    let text = good(&[&["all_reduce"], &large[..]].concat());
    assert!(text.contains("zero_copy"), "{text}");
    let corrupted = perf(&[&["all_reduce", "-t", "2", "--corrupt"], &sizes[..]].concat());
    assert_eq!(corrupted.status.code(), Some(1));
}

/// Rows of JSON Lines, without those about the paths.
fn jsonl(arguments: &[&str]) -> Vec<Value> {
    let text = successful(arguments);
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    rows.filter(|row| row.get("collective").is_some()).collect()
}

#[test]
fn jsonl_prints_an_object_for_each_half_row() {
    let rows = jsonl(&["all_reduce", "-t", "2", "--sizes", "8,4096", "-n", "2", "--jsonl"]);
    let halves: Vec<_> = rows.iter().map(|row| (row["bytes"].as_u64(), row["in_place"].as_bool())).collect();
    let expected = [(8, false), (8, true), (4096, false), (4096, true)];
    assert_eq!(halves, expected.map(|(bytes, in_place)| (Some(bytes), Some(in_place))));
    for row in &rows {
        assert!(row["us"].as_f64().is_some_and(|us| us > 0.0) && row["wrong"] == 0, "{row}");
        assert_eq!((&row["library"], &row["memory"]), (&"unisono".into(), &"host".into()));
    }
}

/// Only where there is a C++ compiler, which builds the software device.
#[test]
fn jsonl_of_gpus_names_paths_and_gpu_time() {
    if Command::new("g++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: needs a C++ compiler");
        return;
    }
    let common = ["all_reduce", "-t", "2", "--device", "software", "--sizes", "8", "-n", "1", "-w", "0"];
    let text = successful(&[&common[..], &["--jsonl"]].concat());
    let paths: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("an object");
    assert_eq!((&paths["direct_paths"], &paths["staged_paths"]), (&2.into(), &Vec::<Value>::new().into()));
    let rows = jsonl(&[&common[..], &["--jsonl", "-R", "2", "-G", "2"]].concat());
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["gpu_us"].as_f64().is_some_and(|us| us > 0.0), "{row}");
        assert_eq!((&row["path"], &row["memory"]), (&"direct".into(), &"symmetric".into()));
        assert_eq!(row["replayed"], true);
    }
    // Ranks of one GPU that are staged are what somebody asked for, or an error.
    let table = good(&[&common[..], &["-v"]].concat());
    assert!(table.contains("# paths of rank 0: 1 direct"), "{table}");
}

#[test]
fn unwritable_json_is_refused_before_measuring() {
    let refused = perf(&["all_reduce", "-t", "2", "--sizes", "8", "-J", "/nowhere/results.json"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/nowhere/results.json"));
    assert!(!refused.status.success() && refused.stdout.is_empty());
}

#[test]
fn gpu_without_driver_is_refused() {
    let output = perf(&["all_reduce", "--device", "cuda", "-t", "2", "--sizes", "8"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || errors.contains("no CUDA driver"), "{errors}");
    let refused = perf(&["all_reduce", "--device", "software", "--memory"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("does not go with --device"));
    let refused = perf(&["all_reduce", "--device", "software", "-t", "2", "--bind", "none"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--bind does not go with --device"));
}

#[test]
fn corruption_is_counted_and_fails() {
    for collective in COLLECTIVES.into_iter().filter(|&collective| collective != "barrier") {
        let root_is_last = ["-r", "1"];
        let common = ["-t", "2", "-b", "1K", "-e", "1K", "-n", "2", "--corrupt"];
        let output = perf(&[&[collective], &root_is_last[..], &common[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{collective}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("wrong elements"), "{collective}");
    }
}

#[test]
fn json_has_the_keys_of_nccl_tests_and_ours() {
    let path = std::env::temp_dir().join(format!("unisono-perf-{}.json", std::process::id()));
    good(&["all_reduce", "--ranks", "2", "-b", "4K", "-e", "64K", "-f", "4", "-J", path.to_str().unwrap()]);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (result, size) in results.iter().zip([4096, 16384, 65536]) {
        assert_eq!((result["size"].as_u64(), result["count"].as_u64()), (Some(size), Some(size / 4)));
        assert_eq!((&result["type"], &result["redop"]), (&"float".into(), &"sum".into()));
        for half in ["out_of_place", "in_place"] {
            assert!(result[half]["time"].as_f64().unwrap() > 0.0);
            assert!(result[half]["bus_bw"].as_f64().unwrap() > 0.0 && result[half]["alg_bw"].is_f64());
            assert_eq!(result[half]["nwrong"].as_u64(), Some(0));
        }
        assert!(result["p50_us"].as_f64().unwrap() <= result["p99_us"].as_f64().unwrap());
        assert_eq!((result["ranks"].as_u64(), &result["transport"]), (Some(2), &"shm".into()));
        assert!(result["algo"].is_string());
    }
    assert_eq!(document["out_of_bounds"]["okay"], Value::Bool(true));
    assert!(document["average_bus_bandwidth"]["bandwidth"].as_f64().unwrap() > 0.0);
    assert!(document["roofline"]["copy_gbs_all_cores"].as_f64().unwrap() > 0.0);
}

#[test]
fn flags_of_nccl_tests_are_understood() {
    let text = good(&[
        "broadcast",
        "-t",
        "3",
        "-b",
        "1K",
        "-e",
        "3K",
        "-i",
        "1K",
        "-n",
        "3",
        "-m",
        "2",
        "-z",
        "0",
        "-a",
        "3",
        "-I",
        "-r",
        "2",
        "-c",
        "1",
        "--report-roofline",
    ]);
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 3);
    assert!(text.contains("i_cv%") && text.contains("bound(us)"));
    for wrong in
        [&["all_reduce", "-o", "mean"][..], &["all_reduce", "-d", "int4"], &["all_reduce", "--algo", "rign"]]
    {
        assert_eq!(perf(wrong).status.code(), Some(1), "{wrong:?}");
    }
}

#[test]
fn fixed_algorithms_run_under_their_names() {
    for algorithm in [
        "ring",
        "bidirectional_ring",
        "tree",
        "pat",
        "recursive_doubling",
        "rabenseifner",
        "oneshot",
        "twoshot",
        "inplace_ring",
    ] {
        let text = good(&[
            "all_reduce",
            "-t",
            "3",
            "-b",
            "64",
            "-e",
            "64K",
            "-f",
            "32",
            "-n",
            "2",
            "--algo",
            algorithm,
        ]);
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        assert!(rows.clone().count() > 0 && rows.into_iter().all(|row| row.ends_with(algorithm)), "{text}");
    }
}

#[test]
fn oversubscribed_16_ranks_finish() {
    for transport in ["shm", "tcp"] {
        let size = ["-b", "8", "-e", "64K", "-f", "64", "-n", "4", "-w", "1"];
        good(&[&["all_reduce", "--ranks", "16", "--transport", transport], &size[..]].concat());
    }
}

#[test]
fn samples_have_time_and_roofline() {
    let path = std::env::temp_dir().join(format!("unisono-samples-{}.json", std::process::id()));
    let file = path.to_str().expect("text");
    for collective in ["all_reduce", "all_to_all", "barrier"] {
        good(&[collective, "-N", "2", "--samples", "10", "--sizes", "8,3K", "-J", file]);
        let text = std::fs::read_to_string(&path).expect("written");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let rows = document["results"].as_array().expect("rows");
        assert_eq!(rows.len(), if collective == "barrier" { 1 } else { 2 }, "{collective}");
        for row in rows {
            assert!(row["out_of_place"]["time"].as_f64().is_some_and(|time| time > 0.0), "{row}");
            assert_eq!(row["out_of_place"]["nwrong"], 0, "{row}");
            assert!(row["in_place"].is_null() && row["roofline_us"].is_number(), "{row}");
        }
    }
    std::fs::remove_file(path).expect("removed");
}
