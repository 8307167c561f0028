//! Commands in time boxes: each is a process group that is killed as a whole at its end.

use crate::Result;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// It was killed at the end of its box.
    OverTime,
    /// It was killed because of what it printed.
    Stopped,
    /// It could not start, or failed with this status.
    Failed(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Stopped => f.write_str("stopped"),
            Self::OverTime => f.write_str("killed at the end of its time"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// Consequence of a line of output.
pub(super) enum Next {
    /// The command goes on; its deadline stays.
    Continue,
    /// The command goes on, and has this time from now on.
    Within(Duration),
    /// The command is killed.
    Stop,
}

/// Name of the variable that marks all processes of a command. A process that leaves the group
/// keeps it.
const MARK: &str = "GPU_SUITE_COMMAND";

/// Runs a command for at most `limit`, and passes on every line of its output at once.
///
/// Afterwards none of its processes runs: neither those of its group nor those that left it.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    mut line: impl FnMut(&str) -> Result<Next>,
) -> Result<Outcome> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mark = format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    // A command that runs commands itself passes its mark on to them, and ends with them.
    let mark = std::env::var(MARK).map_or_else(|_| mark.clone(), |outer| format!("{outer}/{mark}"));
    command.env(MARK, &mark).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Outcome::Failed(error.to_string())),
    };
    let lines = read(&mut child);
    let outcome = follow(&mut child, &lines, limit, &mut line);
    kill(&child, &mark);
    let status = child.wait().map_err(|error| error.to_string())?;
    let outcome = match outcome? {
        // Its caller wants none of what came behind.
        End::Stopped => return Ok(Outcome::Stopped),
        End::OverTime => Outcome::OverTime,
        End::Itself => describe(status),
    };
    // Output from before the end is still in the pipes, which close with the last process.
    while let Ok(text) = lines.recv_timeout(DRAIN) {
        line(&text)?;
    }
    Ok(outcome)
}

/// Why the lines of a command were followed no longer.
enum End {
    Itself,
    OverTime,
    Stopped,
}

/// Passes on lines until the command ends or is stopped, or until the deadline.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    line: &mut impl FnMut(&str) -> Result<Next>,
) -> Result<End> {
    let mut deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(POLL) {
            Ok(text) => match line(&text)? {
                Next::Continue => {}
                Next::Within(limit) => deadline = Instant::now() + limit,
                Next::Stop => return Ok(End::Stopped),
            },
            Err(RecvTimeoutError::Timeout) => {}
            // Closed pipes are no end: the process may still run.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
        }
        if child.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Ok(End::Itself);
        }
        if Instant::now() >= deadline {
            return Ok(End::OverTime);
        }
    }
}

fn describe(status: ExitStatus) -> Outcome {
    match (status.success(), status.signal()) {
        (true, _) => Outcome::Done,
        (false, Some(signal)) => Outcome::Failed(format!("signal {signal}")),
        (false, None) => Outcome::Failed(format!("exit status {}", status.code().unwrap_or_default())),
    }
}

/// Reads both pipes by threads, which end with the last process that holds them.
fn read(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(out) = child.stdout.take() {
        forward(out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward(err, sender);
    }
    receiver
}

fn forward(pipe: impl Read + Send + 'static, sender: Sender<String>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// Kills the group, and then every process with the mark until there is none: a killed process may
/// have started another one before.
fn kill(child: &Child, mark: &str) {
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for _ in 0..ROUNDS {
        let left = marked(mark);
        if left.is_empty() {
            return;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the processes with this mark. Zombies have no environment any more.
fn marked(mark: &str) -> Vec<i32> {
    let (wanted, inner) = (format!("{MARK}={mark}"), format!("{MARK}={mark}/"));
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_mark = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == wanted.as_bytes() || variable.starts_with(inner.as_bytes()))
    };
    pids.filter(has_mark).collect()
}

const POLL: Duration = Duration::from_millis(10);
/// Time without a further line after which output that is still held open is given up.
const DRAIN: Duration = Duration::from_millis(300);
const ROUNDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> (Outcome, Vec<String>) {
        let mut lines = Vec::new();
        let outcome = run(Command::new("sh").args(["-c", script]), Duration::from_secs(seconds), |line| {
            lines.push(line.trim_end().to_owned());
            Ok(Next::Continue)
        });
        (outcome.expect("it ran"), lines)
    }

    #[test]
    fn run_passes_lines_of_both_streams_and_the_status() {
        let (outcome, mut lines) = shell("echo a; echo b >&2; exit 3", 60);
        lines.sort();
        assert_eq!(
            (outcome, lines),
            (Outcome::Failed("exit status 3".to_owned()), vec!["a".into(), "b".into()])
        );
        let (outcome, lines) = shell("echo last; kill -9 $$", 60);
        assert_eq!((outcome, lines), (Outcome::Failed("signal 9".to_owned()), vec!["last".to_owned()]));
    }

    #[test]
    fn run_kills_grandchildren_outside_the_group() {
        // `setsid` leaves the group. The process that it starts must not outlive the box.
        let (outcome, lines) = shell("setsid sh -c 'echo $$; exec sleep 600' & wait", 2);
        assert_eq!(outcome, Outcome::OverTime);
        let pid = lines.first().expect("its number");
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn run_names_a_program_that_does_not_start() {
        let outcome =
            run(&mut Command::new("/nowhere/program"), Duration::from_secs(60), |_| Ok(Next::Continue));
        assert!(matches!(outcome, Ok(Outcome::Failed(why)) if why.contains("No such file")));
    }
}
