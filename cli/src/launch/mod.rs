//! The launcher, which starts the ranks of a job on this host and supervises them.

mod hosts;
mod job;
mod limits;
mod output;
mod rank;
mod reap_orphans;
mod signals;

pub(crate) use hosts::Hosts;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use hosts::fuzz as fuzz_hosts;
pub(crate) use rank::exec_program;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use reap_orphans::fuzz as fuzz_children;

use crate::bind::Bind;
use job::Job;
use rustix::process::Signal;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::mpsc::channel;
use std::time::Duration;
use unisono::UniqueId;

/// A job to start.
pub(crate) struct Launch {
    /// Number of ranks on this host.
    pub(crate) ranks: usize,
    pub(crate) hosts: Hosts,
    pub(crate) program: Vec<OsString>,
    /// Print `[rank]` before every line.
    pub(crate) prefix: bool,
    /// Print the process id of each rank.
    pub(crate) verbose: bool,
    /// Let the other ranks go on when one fails.
    pub(crate) continue_on_failure: bool,
    /// Time between a signal that tells the ranks to end and `SIGKILL`.
    pub(crate) grace: Duration,
    /// Cores of the ranks. A program binds its own threads within them.
    pub(crate) bind: Bind,
}

/// Event that the launcher waits for.
enum Event {
    /// The process of this rank has exited and must be reaped.
    Exited(usize),
    /// The launcher received a signal.
    Signal(Signal),
}

/// Rendezvous of the ranks.
struct JobEndpoint {
    id: UniqueId,
    /// A free port for other libraries in the program; unisono does not use it.
    master_port: u16,
}

impl Launch {
    /// Runs the job to its end and returns the exit code of the first rank that failed.
    ///
    /// # Errors
    ///
    /// Returns an error if a rank cannot be started. Then ranks that were started are killed.
    pub(crate) fn run(&self) -> Result<u8, String> {
        limits::check(self.ranks)?;
        let (sender, events) = channel();
        // Signals are caught before the first rank starts: one that ended this process would kill
        // the ranks without their grace period.
        signals::forward(sender.clone())?;
        // Descendants that leave their rank's process group become children of this process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| format!("cannot adopt the processes of ranks: {error}"))?;
        let meeting = JobEndpoint::new()?;
        let mut job = Job::new(self.grace, self.continue_on_failure);
        for number in 0..self.ranks {
            let command = rank::command(self, number, &meeting)?;
            job.start(number, command, self.verbose, sender.clone())?;
        }
        drop(sender);
        let code = job.watch(&events);
        job.end();
        Ok(code)
    }
}

impl JobEndpoint {
    fn new() -> Result<Self, String> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let id = UniqueId::new(loopback).map_err(|error| error.to_string())?;
        let free = TcpListener::bind((loopback, 0)).and_then(|listener| listener.local_addr());
        let master_port = free.map_err(|error| format!("no port is free: {error}"))?.port();
        Ok(Self { id, master_port })
    }
}
