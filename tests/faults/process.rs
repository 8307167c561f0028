//! Processes that join one world after the other by commands, line by line, and report their
//! observations.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use unisono::UniqueId;
use unisono_transports::testing::HANG;

/// A process that plays a part; it ends with this value.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// Starts one that plays `part`.
    pub(crate) fn start(part: &str) -> Self {
        Self::start_by(&[], part)
    }

    /// Starts one by a command before it, such as one that gives it another network.
    pub(crate) fn start_by(prefix: &[&str], part: &str) -> Self {
        let program = std::env::current_exe().expect("this test");
        let arguments =
            [program.to_str().expect("a name in letters"), "--exact", "--nocapture", "worker::worker_entry"];
        let words: Vec<&str> = prefix.iter().copied().chain(arguments).collect();
        let mut command = Command::new(words[0]);
        let mut child = command
            .args(&words[1..])
            .env("TEST_PART", part)
            // Printing a backtrace takes longer than the reports that are timed.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let (said, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            // The harness of the test may have begun the line.
            let told = out
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| Some(line.split_once("> ")?.1.to_owned()));
            told.for_each(|line| drop(said.send(line)));
        });
        Self { stdin: child.stdin.take().expect("piped"), child, lines }
    }

    /// Tells it what to do.
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").expect("it listens");
    }

    /// The next line that it says.
    pub(crate) fn read_line(&self) -> String {
        self.read_line_within(HANG)
    }

    /// The same, if it takes no longer.
    pub(crate) fn read_line_within(&self, patience: Duration) -> String {
        self.line_within(patience).unwrap_or_else(|silence| panic!("{silence}"))
    }

    fn line_within(&self, patience: Duration) -> Result<String, String> {
        self.lines.recv_timeout(patience).map_err(|silence| match silence {
            RecvTimeoutError::Timeout => format!("it says nothing for {patience:?}"),
            RecvTimeoutError::Disconnected => "it has ended".to_owned(),
        })
    }

    /// The next line, or none if it takes longer or the process has ended.
    pub(crate) fn try_read_line(&self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok()
    }

    /// The rest of the next line that begins with `word`; others before it are left out.
    pub(crate) fn read_until(&self, word: &str) -> String {
        let (begun, mut said) = (Instant::now(), Vec::new());
        while begun.elapsed() < HANG {
            match self.line_within(HANG) {
                Ok(line) if line.starts_with(word) => return line[word.len()..].trim().to_owned(),
                Ok(line) => said.push(line),
                Err(silence) => panic!("{silence} and has not said `{word}`, but {said:?}"),
            }
        }
        panic!("it does not say `{word}` in time, but {said:?}")
    }

    /// Waits until it has ended by itself. Returns its exit code; none after a signal.
    pub(crate) fn wait_for_exit(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < HANG {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it does not end in time")
    }

    /// Sends it a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.id()]).status().expect("kill");
        assert!(sent.success(), "{name}");
    }

    /// Its number in the system.
    pub(crate) fn id(&self) -> String {
        self.child.id().to_string()
    }

    /// Ends it as SIGKILL does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Endpoint where the ranks of a new world meet.
pub(crate) fn new_id() -> UniqueId {
    UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an id")
}

/// Checks the resources of processes: descriptors and threads may not grow, resident KiB only by
/// the caches of an allocator.
pub(crate) fn assert_flat(who: &str, now: &[usize], earlier: &[usize]) {
    let grew = now[..2].iter().zip(earlier).any(|(now, earlier)| now > earlier);
    assert!(!grew, "{who}: descriptors, threads: {:?} became {:?}", &earlier[..2], &now[..2]);
    assert!(now[2] < earlier[2] + SLACK_KIB, "{who}: {} KiB became {}", earlier[2], now[2]);
}

/// Numbers that a process said.
pub(crate) fn numbers(text: &str) -> Vec<usize> {
    text.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

const SLACK_KIB: usize = 4 << 10;
