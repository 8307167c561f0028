//! Algorithms of users in the command's tools: from a program of their own, and from files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The example whose `main` adds its algorithms to the command.
fn own(arguments: &str) -> Output {
    let folder = Path::new(env!("CARGO_BIN_EXE_unisono")).parent().expect("a folder of programs");
    run(&folder.join("examples/own_algorithms"), arguments)
}

fn unisono(arguments: &str) -> Output {
    run(Path::new(env!("CARGO_BIN_EXE_unisono")), arguments)
}

fn run(program: &Path, arguments: &str) -> Output {
    let mut command = Command::new(program);
    command
        .args(arguments.split(' '))
        .env_remove("RANK")
        .env_remove("UNISONO_ALGO")
        .output()
        .expect("it starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A folder of this test, which is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("unisono-own-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn tools_know_the_algorithms_of_a_program() {
    let listed = text(&own("list"));
    assert!(listed.contains("two_level_2") && listed.contains("inplace_ring"), "{listed}");
    let checked = own("check --algo two_level_2 --max-ranks 12");
    assert!(checked.status.success(), "{}", text(&checked));
    assert!(
        text(&checked).contains("# 6 schedules of 1 algorithm checked, 0 are wrong"),
        "{}",
        text(&checked)
    );
    let simulated = own("simulate --algo two_level_2 --seeds 0..150");
    assert!(simulated.status.success() && text(&simulated).contains("150 runs"), "{}", text(&simulated));
    let unknown = own("simulate --algo two_level_3 --seeds 0..1");
    assert!(text(&unknown).contains("no algorithm `two_level_3`"), "{}", text(&unknown));
    let folder = Folder::new("tools");
    let picture = folder.file("picture.svg");
    let explained = own(&format!("explain all_reduce --algo two_level_2 -n 4 --svg {picture}"));
    assert!(explained.status.success(), "{}", text(&explained));
    assert!(std::fs::read_to_string(picture).expect("written").contains("all_reduce two_level_2, 4 ranks"));
}

/// One table has a row for each size and algorithm, over processes and threads.
#[test]
fn perf_compares_own_algorithms_with_others() {
    for ranks in ["-N 4", "-t 4"] {
        let names = "ring,collect,two_level_2";
        let arguments = format!(
            "perf all_reduce {ranks} --sizes 64,40000 -n 2 -w 1 --bind none --jsonl --compare={names}"
        );
        let compared = own(&arguments);
        assert!(compared.status.success(), "{}", text(&compared));
        let stdout = String::from_utf8_lossy(&compared.stdout).into_owned();
        let rows: Vec<serde_json::Value> =
            stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let found: Vec<_> = rows
            .iter()
            .filter(|row| row["in_place"] == false)
            .filter_map(|row| Some((row["bytes"].as_u64()?, row["algo"].as_str()?.to_owned())))
            .collect();
        let expected: Vec<_> = [64, 40_000]
            .into_iter()
            .flat_map(|size| names.split(',').map(move |name| (size, name.to_owned())))
            .collect();
        assert_eq!(found, expected, "{stdout}");
    }
    let compared = text(&own("perf broadcast -t 3 --sizes 64 -n 1 -w 0 --bind none --compare"));
    assert!(
        ["chain", "tree", "binomial", "linear", "window_direct"].iter().all(|name| compared.contains(name)),
        "{compared}"
    );
    let unknown = own("perf all_reduce -t 3 --sizes 64 --compare=two_level_2");
    assert!(
        text(&unknown).contains("no algorithm `two_level_2` that runs on these ranks"),
        "{}",
        text(&unknown)
    );
}

#[test]
fn schedules_of_files_are_measured_and_simulated() {
    let folder = Folder::new("files");
    let file = folder.file("found_by_solver.json");
    let written = unisono(&format!("explain all_reduce --algo rabenseifner -n 4 --json {file}"));
    assert!(written.status.success(), "{}", text(&written));
    let named = std::fs::read_to_string(&file).expect("written").replace("\"rabenseifner\"", "\"\"");
    std::fs::write(&file, named).expect("writable");
    let checked = text(&unisono(&format!("check --schedule {file}")));
    assert!(checked.contains("# 1 schedule of 1 algorithm checked, 0 are wrong"), "{checked}");
    let measured = unisono(&format!(
        "perf all_reduce -N 4 --sizes 64 -n 1 -w 0 --bind none --compare=found_by_solver,ring --schedule {file}"
    ));
    let shown = text(&measured);
    assert!(
        measured.status.success() && shown.contains("found_by_solver") && shown.contains("ring"),
        "{shown}"
    );
    let simulated = unisono(&format!("simulate --algo found_by_solver --seeds 0..20 --schedule {file}"));
    assert!(simulated.status.success(), "{}", text(&simulated));
    let explained = unisono(&format!("explain --schedule {file}"));
    assert!(text(&explained).contains("all_reduce found_by_solver, 4 ranks"), "{}", text(&explained));
}

/// A wrong schedule is refused with the step to look at, and the picture marks it.
#[test]
fn wrong_schedules_of_files_are_refused_and_drawn() {
    let folder = Folder::new("wrong");
    let (file, picture) = (folder.file("wrong.json"), folder.file("wrong.svg"));
    unisono(&format!("explain all_reduce -n 3 --json {file}"));
    // The second step of some rank stores what it receives where no step reads it.
    let text_of = std::fs::read_to_string(&file).expect("written");
    let broken = text_of
        .replacen(r#""into":["out0"]"#, r#""into":["tmp0"]"#, 1)
        .replace("\"scratch\":0", "\"scratch\":1");
    assert_ne!(broken, text_of);
    std::fs::write(&file, broken).expect("writable");
    let measured = unisono(&format!("perf all_reduce -t 3 --schedule {file}"));
    assert!(
        !measured.status.success() && text(&measured).contains("wrong.json is wrong: "),
        "{}",
        text(&measured)
    );
    let explained = unisono(&format!("explain --schedule {file} --svg {picture}"));
    assert_eq!(explained.status.code(), Some(1));
    assert!(text(&explained).contains("lane program 0 step"), "{}", text(&explained));
    assert!(std::fs::read_to_string(picture).expect("written").contains("class=\"fault\""));
    std::fs::write(&file, "{\"collective\":\"all_reduce\"}").expect("writable");
    let damaged = unisono(&format!("check --schedule {file}"));
    assert!(text(&damaged).contains("wrong.json is no schedule: missing field `spec`"), "{}", text(&damaged));
}

/// `run --bind core` gives each rank a core before the program starts.
#[test]
fn run_binds_ranks_to_cores() {
    let shown = |bind: &str| {
        let output =
            unisono(&format!("run --no-prefix -n 2 {bind} -- grep Cpus_allowed_list /proc/self/status"));
        assert!(output.status.success(), "{}", text(&output));
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    let (bound, free) = (shown("--bind core"), shown("--bind none"));
    let is_one = |line: &String| !line.contains([',', '-']);
    assert!(
        bound.len() == 2 && bound.iter().all(|line| is_one(&line.replace("Cpus_allowed_list", ""))),
        "{bound:?}"
    );
    assert_eq!(free[0], free[1]);
    if !is_one(&free[0].replace("Cpus_allowed_list", "")) {
        assert_ne!(bound[0], bound[1], "two cores are there");
    }
}
