//! Signals to `unisono run`: passed on, kept ignored, and enough time to end.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");
/// Ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);

/// A running job of two ranks that have all printed `ready`.
struct Job {
    launcher: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Job {
    /// Starts ranks that run `script`, from a shell that first runs `prelude`.
    fn start(prelude: &str, options: &str, script: &str) -> Self {
        let shell = format!("{prelude} exec {UNISONO} run -n 2 {options} --no-prefix -- sh -c '{script}'");
        // This test may have inherited signals as ignored, as a job in the background of a script
        // does.
        let mut command = Command::new("env");
        command.args(["--default-signal", "sh", "-c", &shell]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut launcher = command.spawn().expect("it starts");
        let lines = BufReader::new(launcher.stdout.take().expect("piped")).lines();
        let mut job = Self { launcher, lines };
        job.expect_twice("ready");
        job
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.launcher.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    }

    /// Waits until both ranks have printed `line`.
    fn expect_twice(&mut self, line: &str) {
        let found = self.lines.by_ref().map(|line| line.expect("text")).filter(|found| found == line).take(2);
        assert_eq!(found.count(), 2, "`{line}` did not come from both ranks");
    }

    /// Returns the exit code, and what the job printed on standard error.
    fn finish(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        while self.launcher.try_wait().expect("a child").is_none() {
            if begun.elapsed() > HANG {
                self.launcher.kill().expect("a child");
                panic!("the job does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut errors = String::new();
        self.launcher.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        (self.launcher.wait().expect("a child").code(), errors)
    }
}

/// A script that waits until `file` exists.
fn wait_for(file: &Path) -> String {
    format!("echo ready; while [ ! -e {} ]; do sleep 0.05; done; echo end", file.display())
}

/// A file that does not exist yet.
fn new_file(name: &str) -> std::path::PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    file
}

#[test]
fn inherited_ignored_signals_stay_ignored() {
    let file = new_file("ignored");
    // As `nohup` and a script's background jobs are started.
    let mut job = Job::start("trap \"\" HUP INT QUIT;", "", &wait_for(&file));
    for signal in ["HUP", "INT", "QUIT"] {
        job.signal(signal);
    }
    std::fs::write(&file, "").expect("a file");
    job.expect_twice("end");
    assert_eq!(job.finish().0, Some(0));
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn notices_reach_ranks_and_end_nothing() {
    let (file, signals) = (new_file("notices"), ["USR1", "USR2", "ALRM", "QUIT", "XCPU", "IO"]);
    let traps: String = signals.map(|signal| format!("trap \"echo got {signal}\" {signal}; ")).concat();
    let mut job = Job::start("", "", &(traps + &wait_for(&file)));
    for signal in signals {
        job.signal(signal);
        job.expect_twice(&format!("got {signal}"));
    }
    std::fs::write(&file, "").expect("a file");
    job.expect_twice("end");
    assert_eq!(job.finish().0, Some(0));
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn notice_that_no_rank_handles_ends_the_job() {
    let job = Job::start("", "", "echo ready; exec sleep 300");
    job.signal("USR1");
    let (code, errors) = job.finish();
    assert_eq!(code, Some(128 + 10), "{errors}");
    assert!(errors.contains("failed: signal: 10"), "{errors}");
}

#[test]
fn terminated_ranks_get_time_to_save() {
    // Saving takes longer than ranks get to notice the failure of another one.
    let save = "trap \"sleep 3; echo saved; exit 0\" TERM; echo ready; while :; do sleep 0.05; done";
    let mut job = Job::start("", "", save);
    job.signal("TERM");
    job.expect_twice("saved");
    let (code, errors) = job.finish();
    assert_eq!(code, Some(128 + 15), "{errors}");
    assert!(errors.contains("passing SIGTERM on; ranks that still run after 30s are killed"), "{errors}");
}

#[test]
fn ranks_killed_after_the_grace_are_named() {
    let ignore = "trap \"\" TERM; echo ready; while :; do sleep 0.05; done";
    let job = Job::start("", "--grace-ms 200", ignore);
    job.signal("TERM");
    let (code, errors) = job.finish();
    assert_eq!(code, Some(128 + 15), "{errors}");
    let words = "ranks 0, 1 are still running 200ms after SIGTERM: killed; --grace-ms gives ranks longer";
    assert!(errors.contains(words), "{errors}");
}

#[test]
fn third_interrupt_kills_ranks_that_do_not_end() {
    let count = "trap \"echo interrupted\" INT; echo ready; while :; do sleep 0.05; done";
    let mut job = Job::start("", "--grace-ms 3600000", count);
    for _ in 0..2 {
        job.signal("INT");
        job.expect_twice("interrupted");
    }
    job.signal("INT");
    let (code, errors) = job.finish();
    assert_eq!(code, Some(128 + 2), "{errors}");
    assert!(errors.contains("still running at Ctrl-C number 3: killed"), "{errors}");
}

#[test]
fn stop_and_continue_reach_ranks() {
    // A shell that starts programs is not always seen as stopped: while a program that it starts
    // is stopped before its first instruction, the shell waits for it uninterruptibly.
    let job = Job::start("", "", "echo ready; exec sleep 300");
    let launcher = job.launcher.id().to_string();
    let ranks = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
    let ranks: Vec<String> = ranks.expect("children").split_whitespace().map(str::to_owned).collect();
    assert_eq!(ranks.len(), 2);
    let processes: Vec<&str> = ranks.iter().map(String::as_str).chain([launcher.as_str()]).collect();
    job.signal("TSTP");
    wait_until_stopped(&processes, true);
    job.signal("CONT");
    wait_until_stopped(&processes, false);
    job.signal("TERM");
    assert_eq!(job.finish().0, Some(128 + 15));
}

/// Waits until all of these processes are stopped, or none is.
fn wait_until_stopped(pids: &[&str], stopped: bool) {
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        stat.rsplit(") ").next().expect("a state").chars().next()
    };
    let begun = Instant::now();
    while pids.iter().any(|pid| (state(pid) == Some('T')) != stopped) {
        assert!(begun.elapsed() < HANG, "{:?}", pids.iter().map(|pid| state(pid)).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(10));
    }
}
