//! `unisono run` with real processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

fn run(ranks: &str, script: &str) -> Output {
    Command::new(UNISONO).args(["run", "-n", ranks, "--", "sh", "-c", script]).output().expect("it starts")
}

/// Returns a launcher that gets SIGINT also where this test inherited it as ignored, as a job in
/// the background of a script does.
fn interruptible() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", UNISONO]);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_alive(pid: &str) -> bool {
    // An unreaped zombie is not running.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|tail| !tail.trim().is_empty() && !tail.trim_start().starts_with('Z'))
}

fn gone_soon(pid: &str) -> bool {
    let begun = Instant::now();
    while is_alive(pid) {
        if begun.elapsed() > Duration::from_secs(100) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Starts a job whose ranks print their process and a child's, and waits for `lines` of them.
fn start_sleepers(lines: usize) -> (Child, Vec<String>) {
    let script = "sleep 300 & echo $$ $!; wait";
    let mut job = interruptible()
        .args(["run", "-n", "2", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(job.stdout.take().expect("piped"));
    let printed: Vec<String> = output.lines().take(lines).map(|line| line.expect("text")).collect();
    let pids = printed.iter().flat_map(|line| line.split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>());
    (job, pids.collect())
}

#[test]
fn program_needs_no_dashes_before_it() {
    for dashes in [&["--"][..], &[]] {
        let mut command = Command::new(UNISONO);
        // The program gets all that follows it, also what looks like an option of `run`.
        command
            .args(["run", "-n", "1", "--no-prefix"])
            .args(dashes)
            .args(["echo", "-n", "--ranks", "-h", "--", "x"]);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).trim(), "--ranks -h -- x");
    }
    let unknown =
        Command::new(UNISONO).args(["run", "-n", "1", "--node", "1", "true"]).output().expect("it starts");
    assert!(
        !unknown.status.success() && text(&unknown.stderr).contains("--node"),
        "{}",
        text(&unknown.stderr)
    );
}

#[test]
fn output_is_prefixed_and_the_environment_is_complete() {
    let output = run("3", "echo $RANK/$WORLD_SIZE/$LOCAL_RANK; echo problem >&2; printf unfinished");
    assert!(output.status.success());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    for rank in 0..3 {
        assert!(stdout.contains(&format!("[{rank}] {rank}/3/{rank}\n")), "{stdout}");
        assert!(stdout.contains(&format!("[{rank}] unfinished\n")), "{stdout}");
        assert!(stderr.contains(&format!("[{rank}] problem\n")), "{stderr}");
    }
}

#[test]
fn first_failing_rank_sets_exit_code() {
    let output = run("3", "if [ $RANK = 1 ]; then exit 7; fi; sleep 60");
    assert_eq!(output.status.code(), Some(7));
    let output = run("2", "if [ $RANK = 0 ]; then kill -9 $$; fi; sleep 60");
    assert_eq!(output.status.code(), Some(128 + 9));
    assert!(text(&output.stderr).contains("rank 0 failed"));
}

#[test]
fn continue_on_failure_lets_ranks_finish() {
    let keep_going = |script: &str| {
        let arguments = ["run", "--continue-on-failure", "-n", "3", "--", "sh", "-c", script];
        Command::new(UNISONO).args(arguments).output().expect("it starts")
    };
    let output = keep_going("if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 3; echo well");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout).matches("well").count(), 2);
    assert!(text(&output.stderr).contains("rank 1 failed"));
    // No rank succeeds: the first failure counts.
    assert_eq!(keep_going("sleep $RANK; exit $((RANK + 5))").status.code(), Some(5));
}

/// A launcher that panics kills its ranks.
#[test]
fn job_survives_the_reader_of_its_messages() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let script = "[ $RANK = 1 ] && exit 3; sleep 0.2; echo well";
    let mut job = Command::new(UNISONO);
    job.args(["run", "-n", "2", "--verbose", "--continue-on-failure", "--", "sh", "-c", script]);
    let mut job = job.stdout(Stdio::piped()).stderr(writer).spawn().expect("it starts");
    let mut printed = String::new();
    job.stdout.take().expect("piped").read_to_string(&mut printed).expect("text");
    let status = job.wait().expect("it ends");
    assert!(status.success() && printed.contains("[0] well"), "{status}: {printed}");
}

#[test]
fn invalid_program_is_named() {
    let output = Command::new(UNISONO).args(["run", "-n", "1", "--", "/no/such/program"]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("/no/such/program"));
}

#[test]
fn signals_are_forwarded_without_leftovers() {
    // Ctrl-C is INT.
    for (signal, number) in [("-TERM", 15), ("-INT", 2)] {
        let (mut job, pids) = start_sleepers(2);
        assert_eq!(pids.len(), 4);
        Command::new("kill").args([signal, &job.id().to_string()]).status().unwrap();
        let status = job.wait().unwrap();
        assert_eq!(status.code(), Some(128 + number));
        assert!(pids.iter().all(|pid| gone_soon(pid)), "{signal}");
    }
}

#[test]
fn interrupted_ranks_leave_no_shm() {
    let segments = || std::fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    let start = segments();
    let mut job = interruptible()
        .args(["run", "-n", "2", "--no-prefix", "--", UNISONO, "perf", "all_reduce", "-b", "8", "-e", "8"])
        .args(["-n", "1000000000", "--transport", "shm"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut table = BufReader::new(job.stdout.take().expect("piped")).lines();
    table.next().expect("the ranks have met").unwrap();
    Command::new("kill").args(["-INT", &job.id().to_string()]).status().unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(128 + 2));
    assert_eq!(segments(), start);
}

#[test]
fn ranks_die_with_killed_launcher() {
    let (mut job, pids) = start_sleepers(2);
    job.kill().unwrap();
    job.wait().unwrap();
    // The shells are tied to the launcher; what they started themselves is theirs to look after.
    assert!(pids.iter().step_by(2).all(|pid| gone_soon(pid)));
    for pid in pids.iter().skip(1).step_by(2) {
        Command::new("kill").args(["-9", pid]).status().unwrap();
    }
}

#[test]
fn orphans_of_a_rank_are_killed() {
    let mut job = Command::new(UNISONO)
        .args(["run", "-n", "1", "--no-prefix", "--", "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    job.stdout.take().unwrap().read_to_string(&mut pid).unwrap();
    assert!(job.wait().unwrap().success());
    assert!(gone_soon(pid.trim()));
}

#[test]
fn launchers_of_two_hosts_number_their_ranks_and_ranks_meet() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let master = free.expect("a port").to_string();
    let secret = "ab".repeat(32);
    let host = |number: &str, program: &[&str]| {
        let mut command = Command::new(UNISONO);
        command.args(["run", "-n", "2", "--nnodes", "2", "--node-rank", number, "--master", &master, "--"]);
        command.args(program).env("UNISONO_SECRET", &secret).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let script = [
        "sh",
        "-c",
        "echo $RANK/$WORLD_SIZE/$LOCAL_RANK/$LOCAL_WORLD_SIZE/$GROUP_RANK@$MASTER_PORT$UNISONO_ID",
    ];
    let port = master.rsplit(':').next().expect("a port");
    for number in ["0", "1"] {
        let output = host(number, &script).wait_with_output().expect("an end");
        let rank = if number == "0" { 0 } else { 2 };
        for local in 0..2 {
            let line = format!("{}/4/{local}/2/{number}@{port}\n", rank + local);
            assert!(text(&output.stdout).contains(&line), "{line} is not in {}", text(&output.stdout));
        }
    }
    let perf = [UNISONO, "perf", "all_reduce", "-b", "4K", "-e", "4K"];
    let hosts = [host("0", &perf), host("1", &perf)].map(|host| host.wait_with_output().expect("an end"));
    for host in &hosts {
        assert!(host.status.success(), "{}", text(&host.stderr));
    }
    let output = Command::new(UNISONO).args(["run", "-n", "2", "--nnodes", "2", "--", "true"]).output();
    let said = text(&output.expect("it starts").stderr);
    assert!(said.contains("--nnodes 2 needs --master HOST:PORT"), "{said}");
}
