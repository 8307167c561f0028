//! The running job, which records the first failure and ends all processes.

use super::output::Outputs;
use super::{Event, reap_orphans, signals};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, waitid};
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
    phase: Phase,
    /// Number of times that the user has pressed Ctrl-C.
    interrupts: usize,
}

/// The progress of ending the ranks.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// A rank has failed. Until this time, the others may notice it and end by themselves.
    Noticing(Instant),
    /// The ranks were sent this signal, and are killed at this time.
    Ending(Signal, Instant),
    Killed,
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
            phase: Phase::Running,
            interrupts: 0,
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
        // Recorded before a later step can fail, so that dropping the job ends this rank as well.
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

    /// Waits for all ranks. If a rank fails, the others get time to end and are then killed.
    pub(super) fn watch(&mut self, events: &Receiver<Event>) -> u8 {
        while self.ranks.iter().any(|rank| !rank.exited) {
            match self.next(events) {
                Ok(Event::Exited(number)) => self.on_exit(number),
                Ok(Event::Signal(signal)) => self.on_signal(signal),
                Err(_) => self.on_timeout(),
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

    /// Returns the next event, or a timeout when this phase is over.
    fn next(&self, events: &Receiver<Event>) -> Result<Event, RecvTimeoutError> {
        match self.phase {
            Phase::Noticing(deadline) | Phase::Ending(_, deadline) => {
                events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
            // A rank may run for any time, and nothing stronger can follow `SIGKILL`.
            Phase::Running | Phase::Killed => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Tells the remaining ranks to end, or kills them if they were told before. Prints a message
    /// about it.
    fn on_timeout(&mut self) {
        let remaining = self.remaining();
        match self.phase {
            Phase::Ending(signal, _) => {
                self.kill(&format!("{:?} after {}", self.grace, signals::name(signal)))
            }
            _ => {
                eprintln!(
                    "unisono: {remaining} still running {NOTICE_TIME:?} after that failure: passing SIGTERM on"
                );
                self.signal_end(Signal::TERM);
            }
        }
    }

    /// Sends a signal that tells the ranks to end, and starts their grace period unless it has
    /// begun.
    fn signal_end(&mut self, signal: Signal) {
        self.signal(signal);
        // A stopped rank would get the signal only when it is continued.
        self.signal(Signal::CONT);
        if matches!(self.phase, Phase::Running | Phase::Noticing(_)) {
            self.phase = Phase::Ending(signal, Instant::now() + self.grace);
        }
    }

    fn kill(&mut self, when: &str) {
        let remaining = self.remaining();
        eprintln!("unisono: {remaining} still running {when}: killed; --grace-ms gives ranks longer to end");
        self.phase = Phase::Killed;
        self.signal(Signal::KILL);
    }

    /// Returns the numbers of the ranks that still run, for messages.
    fn remaining(&self) -> String {
        let numbers = (0..self.ranks.len()).filter(|&number| !self.ranks[number].exited);
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        match &numbers[..] {
            [number] => format!("rank {number} is"),
            more => format!("ranks {} are", more.join(", ")),
        }
    }

    /// Reaps a rank, and kills the processes that are left in its group.
    fn on_exit(&mut self, number: usize) {
        let rank = &mut self.ranks[number];
        // Kill the group before reaping its leader: until then no other group can have this number.
        let _ = kill_process_group(rank.group, Signal::KILL);
        rank.exited = true;
        let Ok(status) = rank.child.wait() else { return };
        let code = exit_code(status);
        self.succeeded |= code == 0;
        // The failure of a rank that this process has killed is a consequence, and must not hide
        // the cause.
        if code != 0 && !matches!(self.phase, Phase::Killed) {
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
        if ends_job && matches!(self.phase, Phase::Running) {
            self.phase = Phase::Noticing(now + NOTICE_TIME);
        }
    }

    /// Passes a signal on to the ranks. Ranks that have to end get their grace period.
    ///
    /// Programs may interpret a second signal as a request to end at once, so it is passed on as
    /// well. The third Ctrl-C kills the ranks.
    fn on_signal(&mut self, signal: Signal) {
        self.interrupts += usize::from(signal == Signal::INT);
        if signal == Signal::TSTP {
            return self.stop();
        }
        if !signals::ends_job(signal) {
            return self.signal(signal);
        }
        if self.interrupts == INTERRUPTS_MAX {
            return self.kill(&format!("at Ctrl-C number {INTERRUPTS_MAX}"));
        }
        if !matches!(self.phase, Phase::Ending(..) | Phase::Killed) {
            let (name, grace) = (signals::name(signal), self.grace);
            eprintln!("unisono: passing {name} on; ranks that still run after {grace:?} are killed");
        }
        // The phase must change first, because `on_failure` gives ranks that run time to notice a
        // failure. This end counts as a death by signal, so that no later death replaces its code.
        self.signal_end(signal);
        self.on_failure(128 + signal.as_raw() as u8, true, true);
    }

    /// Stops the ranks and then this process, until somebody continues it. The time in which ranks
    /// are stopped does not count for their deadlines.
    fn stop(&mut self) {
        // The terminal's Ctrl-Z reaches only this process, because ranks have process groups of
        // their own. This process stops last, as it cannot send a signal while it is stopped, and
        // by `SIGSTOP`, as it catches `SIGTSTP`.
        self.signal(Signal::TSTP);
        let begun = Instant::now();
        let _ = kill_process(getpid(), Signal::STOP);
        if let Phase::Noticing(deadline) | Phase::Ending(_, deadline) = &mut self.phase {
            *deadline += begun.elapsed();
        }
    }

    /// Sends a signal to every rank that still runs, and to its children.
    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| !rank.exited) {
            let _ = kill_process_group(rank.group, signal);
        }
    }

    /// Ends processes that the ranks have left running, and passes on the rest of their output.
    pub(super) fn end(&mut self) {
        // Orphans may hold the pipes of the ranks open, and the output ends only when the pipes are
        // closed.
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
    // `Job::on_exit` reaps the process, because its number must stay taken until its group is
    // killed.
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
/// Time in which ranks notice the failure of another rank and report what they know about it.
const NOTICE_TIME: Duration = Duration::from_secs(2);
/// Number of the Ctrl-C that kills.
const INTERRUPTS_MAX: usize = 3;
/// Limit for steps that normally take no time.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);
