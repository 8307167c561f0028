//! Starts the ranks of a job on this host and looks after them.

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use unisono::UniqueId;

/// What to start, and how.
pub(crate) struct Launch {
    pub(crate) ranks: usize,
    pub(crate) program: Vec<OsString>,
    /// Put `[rank]` in front of every line.
    pub(crate) prefix: bool,
    /// Say which process each rank is.
    pub(crate) verbose: bool,
    /// How long the other ranks may go on when one has failed.
    pub(crate) grace: Duration,
}

/// One rank's process, the leader of a group of its own.
struct Rank {
    number: usize,
    child: Child,
    group: Pid,
    ended: Option<ExitStatus>,
}

impl Launch {
    /// Runs the job to its end; the exit code is that of the first rank that failed.
    pub(crate) fn run(&self) -> Result<u8, String> {
        let id = UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(|error| error.to_string())?;
        let signals = forwarded_signals()?;
        let mut job = Job { ranks: Vec::new(), outputs: Vec::new() };
        for number in 0..self.ranks {
            job.start(self, number, &id)?;
        }
        let code = job.watch(self.grace, &signals);
        job.end();
        Ok(code)
    }

    fn command(&self, rank: usize, id: &UniqueId) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(own);
        command.arg("exec-rank").arg(std::process::id().to_string()).arg("--").args(&self.program);
        command.process_group(0);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", self.ranks.to_string()).env("LOCAL_WORLD_SIZE", self.ranks.to_string());
        command.env("MASTER_ADDR", id.address().ip().to_string());
        command.env("MASTER_PORT", id.address().port().to_string());
        command.env("UNISONO_ID", id.to_string());
        if self.prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command.stdin(Stdio::null());
        Ok(command)
    }
}

/// All ranks, and the threads that pass their output on. Dropping it kills what is left.
struct Job {
    ranks: Vec<Rank>,
    outputs: Vec<std::thread::JoinHandle<()>>,
}

impl Job {
    fn start(&mut self, launch: &Launch, number: usize, id: &UniqueId) -> Result<(), String> {
        let mut command = launch.command(number, id)?;
        let mut child = command.spawn().map_err(|error| format!("cannot start rank {number}: {error}"))?;
        let group = Pid::from_child(&child);
        if launch.verbose {
            eprintln!("# rank {number} pid {}", child.id());
        }
        if let Some(stdout) = child.stdout.take() {
            self.outputs.push(pass_on(number, stdout, std::io::stdout()));
        }
        if let Some(stderr) = child.stderr.take() {
            self.outputs.push(pass_on(number, stderr, std::io::stderr()));
        }
        self.ranks.push(Rank { number, child, group, ended: None });
        Ok(())
    }

    /// Waits for all ranks; when one fails, the others get `grace` and are then killed.
    fn watch(&mut self, grace: Duration, signals: &Receiver<i32>) -> u8 {
        let mut failure: Option<(u8, Instant)> = None;
        while self.ranks.iter().any(|rank| rank.ended.is_none()) {
            for signal in signals.try_iter() {
                self.signal(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
                failure.get_or_insert((128 + signal as u8, Instant::now()));
            }
            for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
                if let Ok(Some(status)) = rank.child.try_wait() {
                    rank.ended = Some(status);
                    let code = exit_code(status);
                    if code != 0 && failure.is_none() {
                        eprintln!("# rank {} failed: {status}", rank.number);
                        failure = Some((code, Instant::now()));
                    }
                }
            }
            if failure.is_some_and(|(_, since)| since.elapsed() > grace) {
                self.signal(Signal::KILL);
            }
            std::thread::sleep(WATCH_EVERY);
        }
        failure.map_or(0, |(code, _)| code)
    }

    /// Sends a signal to every rank that still runs, and to its children.
    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.ended.is_none()) {
            let _ = kill_process_group(rank.group, signal);
        }
    }

    /// Kills what the ranks left behind and passes on the last of their output.
    fn end(&mut self) {
        self.kill();
        for output in self.outputs.drain(..) {
            let _ = output.join();
        }
    }

    fn kill(&self) {
        for rank in &self.ranks {
            let _ = kill_process_group(rank.group, Signal::KILL);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Becomes `program`, after making sure that it dies with its launcher.
pub(crate) fn exec_rank(launcher: i32, program: &[OsString]) -> String {
    let Some((name, arguments)) = program.split_first() else {
        return "no program was given".to_owned();
    };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("cannot tie this rank to its launcher: {error}");
    }
    let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if parent.is_none_or(|parent| parent.get() != launcher) {
        return "the launcher is already gone".to_owned();
    }
    let error = Command::new(name).args(arguments).exec();
    format!("cannot start {}: {error}", name.to_string_lossy())
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or(0) as u8,
    }
}

/// Copies lines to `into`, each with its rank in front.
fn pass_on(
    rank: usize,
    from: impl Read + Send + 'static,
    mut into: impl Write + Send + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(from);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            let mut whole = format!("[{rank}] ").into_bytes();
            whole.append(&mut line);
            // A reader that went away must not stop the job.
            let _ = into.write_all(&whole).and_then(|()| into.flush());
        }
    })
}

/// Signals for the job arrive here instead of ending the launcher.
fn forwarded_signals() -> Result<Receiver<i32>, String> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| format!("cannot watch for signals: {error}"))?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    Ok(receiver)
}

const WATCH_EVERY: Duration = Duration::from_millis(5);
