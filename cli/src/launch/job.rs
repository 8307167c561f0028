//! The running job: the first failure, and how every process comes to its end.

use super::output::Outputs;
use super::{Event, reap_orphans};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// All ranks and the threads that forward their output. Dropping a job kills the remaining ranks.
pub(super) struct Job {
    ranks: Vec<Rank>,
    outputs: Outputs,
    grace: Duration,
    continue_on_failure: bool,
    /// True once a rank has exited with success.
    succeeded: bool,
    failure: Option<Failure>,
    /// True once the launcher has killed the ranks.
    killed: bool,
}

/// The process of one rank, which leads its own process group.
struct Rank {
    child: Child,
    group: Pid,
    exited: bool,
}

/// The first failure, which decides the exit code.
struct Failure {
    code: u8,
    by_signal: bool,
    /// True if this failure ends the other ranks.
    ends_job: bool,
    since: Instant,
}

impl Job {
    pub(super) fn new(grace: Duration, keep_going: bool) -> Self {
        let (ranks, outputs) = (Vec::new(), Outputs::new());
        Self {
            ranks,
            outputs,
            grace,
            continue_on_failure: keep_going,
            succeeded: false,
            failure: None,
            killed: false,
        }
    }

    /// Starts the next rank, whose end becomes an event.
    pub(super) fn start(
        &mut self,
        number: usize,
        mut command: Command,
        verbose: bool,
        events: Sender<Event>,
    ) -> Result<(), String> {
        let failed = |error| format!("cannot start rank {number}: {error}");
        let mut child = command.spawn().map_err(failed)?;
        let group = Pid::from_child(&child);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.ranks.push(Rank { child, group, exited: false });
        if verbose {
            eprintln!("# rank {number} pid {}", group.as_raw_pid());
        }
        if let Some(stdout) = stdout {
            self.outputs.forward(number, stdout, std::io::stdout()).map_err(failed)?;
        }
        if let Some(stderr) = stderr {
            self.outputs.forward(number, stderr, std::io::stderr()).map_err(failed)?;
        }
        let wait = move || {
            wait_for_exit(group);
            // The receiver is gone once the launch has failed.
            let _ = events.send(Event::Exited(number));
        };
        std::thread::Builder::new().name(format!("end of rank {number}")).spawn(wait).map_err(failed)?;
        Ok(())
    }

    /// Waits for all ranks; when one fails, the others get their grace and are then killed.
    pub(super) fn watch(&mut self, events: &Receiver<Event>) -> u8 {
        while self.ranks.iter().any(|rank| !rank.exited) {
            match self.next(events) {
                Ok(Event::Exited(number)) => self.on_exit(number),
                Ok(Event::Signal(signal)) => self.on_signal(signal),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.killed = true;
                    self.signal(Signal::KILL);
                }
            }
        }
        match &self.failure {
            // The remaining ranks have succeeded.
            Some(failure) if !(self.continue_on_failure && self.succeeded && !failure.ends_job) => {
                failure.code
            }
            _ => 0,
        }
    }

    /// The next event; a timeout when the grace is over.
    fn next(&self, events: &Receiver<Event>) -> Result<Event, RecvTimeoutError> {
        match &self.failure {
            Some(failure) if failure.ends_job && !self.killed => {
                events.recv_timeout((failure.since + self.grace).saturating_duration_since(Instant::now()))
            }
            _ => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Reaps a rank, and kills what it has left in its group.
    fn on_exit(&mut self, number: usize) {
        let rank = &mut self.ranks[number];
        // Kill the group before reaping its leader: until then no other group can have this number.
        let _ = kill_process_group(rank.group, Signal::KILL);
        rank.exited = true;
        let Ok(status) = rank.child.wait() else { return };
        let code = exit_code(status);
        self.succeeded |= code == 0;
        if code != 0 && !self.killed {
            eprintln!("unisono: rank {number} failed: {status}");
            self.on_failure(code, status.signal().is_some(), !self.continue_on_failure);
        }
    }

    /// Records a failure if it is the first.
    ///
    /// Ranks notice the death of another rank quickly, and their own exits may be seen before that
    /// death. A death by signal shortly after an exit therefore replaces the exit.
    fn on_failure(&mut self, code: u8, by_signal: bool, ends_job: bool) {
        let now = Instant::now();
        match &mut self.failure {
            Some(first) if by_signal && !first.by_signal && now - first.since < SETTLE => {
                (first.code, first.by_signal) = (code, true);
                first.ends_job |= ends_job;
            }
            Some(first) if first.ends_job || !ends_job => {}
            _ => self.failure = Some(Failure { code, by_signal, ends_job, since: now }),
        }
    }

    /// Forwards a signal to the ranks and starts the grace period.
    fn on_signal(&mut self, signal: Signal) {
        self.signal(signal);
        self.on_failure(128 + signal.as_raw() as u8, true, true);
    }

    /// Sends a signal to every rank that still runs, and to its children.
    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| !rank.exited) {
            let _ = kill_process_group(rank.group, signal);
        }
    }

    /// Ends what the ranks have left behind, and passes on the last of their output.
    pub(super) fn end(&mut self) {
        reap_orphans::kill_all(CLEANUP_TIMEOUT);
        self.outputs.finish(CLEANUP_TIMEOUT);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for rank in self.ranks.iter_mut().filter(|rank| !rank.exited) {
            let _ = rank.child.wait();
        }
    }
}

/// Returns when the process has ended, and leaves it to be reaped.
fn wait_for_exit(process: Pid) {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(process), how), Err(rustix::io::Errno::INTR)) {}
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or(0) as u8,
    }
}

/// Interval after an exit in which a death by signal still counts as the cause of that exit.
const SETTLE: Duration = Duration::from_millis(200);
/// Limit for steps that normally take no time.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);
