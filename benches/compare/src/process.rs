//! Commands that end, or are ended when they hang.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Output and outcome of a command.
pub(crate) struct ProcessOutcome {
    pub(crate) stdout: String,
    /// Time from start to end.
    pub(crate) wall: Duration,
    /// Time from the last output to the end.
    pub(crate) silence: Duration,
    /// Why it is not a success, if it is none.
    pub(crate) failure: Option<String>,
}

/// Runs a command in its own process group.
///
/// After `limit` without output, the group is asked to end, then killed.
pub(crate) fn run(command: &mut Command, limit: Duration) -> ProcessOutcome {
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = command.get_program().to_string_lossy();
            let failure = Some(format!("{program} does not start: {error}"));
            let (wall, silence) = (begun.elapsed(), Duration::ZERO);
            return ProcessOutcome { stdout: String::new(), wall, silence, failure };
        }
    };
    let (stdout, stderr) = (Output::of(child.stdout.take()), Output::of(child.stderr.take()));
    let in_time = wait(&mut child, || stdout.last(begun).elapsed() >= limit);
    let (wall, silence) = (begun.elapsed(), stdout.last(begun).elapsed());
    if !in_time {
        end(&mut child);
    }
    let failure = match child.wait() {
        _ if !in_time => Some(silence_message(limit)),
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{status}: {}", last_line(&stderr.text()))),
        Err(error) => Some(error.to_string()),
    };
    ProcessOutcome { stdout: stdout.text(), wall, silence, failure }
}

/// Text that reports a command without output.
pub(crate) fn silence_message(limit: Duration) -> String {
    format!("did nothing for {} s", limit.as_secs())
}

/// Output of a pipe, read on a thread so that a full pipe blocks nobody.
struct Output {
    bytes: JoinHandle<Vec<u8>>,
    /// When something came last.
    last: Arc<Mutex<Option<Instant>>>,
}

impl Output {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let last = Arc::new(Mutex::new(None));
        let stamped = Arc::clone(&last);
        let bytes = spawn(move || pipe.map(|pipe| collect(pipe, &stamped)).unwrap_or_default());
        Self { bytes, last }
    }

    /// `begun` until something comes.
    fn last(&self, begun: Instant) -> Instant {
        lock(&self.last).unwrap_or(begun)
    }

    /// Returns the output so far. A descendant may keep the pipe open after the command ended, so
    /// nothing waits for its end.
    fn text(self) -> String {
        let deadline = Instant::now() + PIPE_TIMEOUT;
        while !self.bytes.is_finished() && Instant::now() < deadline {
            sleep(POLL);
        }
        let bytes = if self.bytes.is_finished() { self.bytes.join().unwrap_or_default() } else { Vec::new() };
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Output before an error counts.
fn collect(mut pipe: impl Read, last: &Mutex<Option<Instant>>) -> Vec<u8> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 1 << 12]);
    while let Ok(length @ 1..) = pipe.read(&mut piece) {
        bytes.extend_from_slice(&piece[..length]);
        *lock(last) = Some(Instant::now());
    }
    bytes
}

/// The instant is valid even if another thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(child: &mut Child, too_late: impl Fn() -> bool) -> bool {
    while matches!(child.try_wait(), Ok(None)) {
        if too_late() {
            return false;
        }
        sleep(POLL);
    }
    true
}

/// Launchers pass the first signal on to their ranks; the second one cannot be refused.
fn end(child: &mut Child) {
    for signal in [Signal::TERM, Signal::KILL] {
        if let Some(group) = Pid::from_raw(child.id() as i32) {
            // Gone already is what was wanted.
            let _ = kill_process_group(group, signal);
        }
        let deadline = Instant::now() + GRACE;
        if wait(child, || Instant::now() >= deadline) {
            break;
        }
    }
}

/// The last line that says something, without control characters, short enough for a table.
fn last_line(text: &str) -> String {
    let says = |line: &&str| line.chars().any(char::is_alphabetic);
    let line = text.lines().rev().find(says).unwrap_or("no message");
    line.chars().filter(|letter| !letter.is_control()).take(160).collect()
}

/// Coarse enough to cost nothing beside ranks that spin.
const POLL: Duration = Duration::from_millis(2);
const GRACE: Duration = Duration::from_secs(5);
const PIPE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> ProcessOutcome {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn output_and_success() {
        let ended = shell("echo out; echo err >&2", Duration::from_secs(20));
        assert_eq!((ended.stdout.as_str(), ended.failure), ("out\n", None));
    }

    #[test]
    fn failure_is_named_by_last_line() {
        let ended = shell("echo first >&2; echo second >&2; echo ---- >&2; exit 3", Duration::from_secs(20));
        let failure = ended.failure.expect("it failed");
        assert!(failure.contains("exit status: 3") && failure.ends_with(": second"), "{failure}");
    }

    #[test]
    fn hung_process_group_is_killed_and_output_kept() {
        let begun = Instant::now();
        let ended = shell("echo partial; sleep 600 & sleep 600", Duration::from_millis(300));
        assert_eq!(ended.stdout, "partial\n");
        assert!(ended.failure.expect("ended").starts_with("did nothing"));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn process_with_output_is_not_killed() {
        let (script, limit) =
            ("for step in 1 2 3 4 5 6 7 8; do echo $step; sleep 0.5; done", Duration::from_secs(3));
        let ended = shell(script, limit);
        assert_eq!((ended.stdout.lines().count(), ended.failure), (8, None));
        assert!(ended.wall > limit && ended.silence < limit, "{:?} of {:?}", ended.silence, ended.wall);
    }

    #[test]
    fn missing_program_is_a_failure() {
        let ended = run(&mut Command::new("/nonexistent"), Duration::from_secs(1));
        assert!(ended.failure.expect("nothing to run").contains("does not start"));
    }
}
