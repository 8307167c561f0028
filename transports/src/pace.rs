//! Waiting for another rank: spin, then yield, then sleep.
//!
//! A hand-over between two cores takes 0.2 µs when the receiver spins. If the
//! sender has no core, spinning only keeps it from getting one, and a yield
//! hands over in 2 µs. Waking a sleeper on another core takes tens of
//! microseconds, so sleep comes last and is a timed poll of the sockets: nobody
//! has to remember to wake anybody.

use crate::Pace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::sched_yield;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Waits as long as it takes, giving away more the longer it takes.
#[derive(Debug)]
pub struct Patience {
    begun: Instant,
    spins: u32,
    /// Rounds after which it sleeps.
    yields: u32,
    /// What ends a sleep early.
    watched: Vec<OwnedFd>,
}

impl Patience {
    /// For one of `local_ranks` ranks that share this host's cores.
    pub fn new(local_ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let spins = if local_ranks > cores { SPINS_CROWDED } else { SPINS_ALONE };
        Self { begun: Instant::now(), spins, yields: YIELDS, watched: Vec::new() }
    }

    /// Sleeps end as soon as one of these can be read.
    #[must_use]
    pub fn watching(mut self, watched: Vec<OwnedFd>) -> Self {
        self.watched = watched;
        self
    }

    /// Sleeps after `yields` rounds: few where what is waited for wakes the sleeper, as sockets do.
    #[must_use]
    pub fn sleeping_after(mut self, yields: u32) -> Self {
        self.yields = yields;
        self
    }

    fn sleep(&self, time: Duration) {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut watched = [const { None }; WATCHED_MAX];
        let mut count = 0;
        for (place, fd) in watched.iter_mut().zip(&self.watched) {
            *place = Some(PollFd::new(fd, PollFlags::IN));
            count += 1;
        }
        if count == 0 {
            std::thread::sleep(Duration::from_nanos(time.tv_nsec as u64));
            return;
        }
        let mut watched =
            watched.map(|fd| fd.unwrap_or_else(|| PollFd::new(&self.watched[0], PollFlags::empty())));
        // An interrupted or failed poll is only a shorter sleep.
        let _ = poll(&mut watched[..count], Some(&time));
    }
}

impl Pace for Patience {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn pause(&mut self, rounds: u32) {
        if rounds < self.spins {
            std::hint::spin_loop();
        } else if rounds < self.yields {
            sched_yield();
        } else {
            let longer = (rounds - self.yields) / ROUNDS_PER_DOUBLING;
            self.sleep(SLEEP_MIN.saturating_mul(1 << longer.min(5)).min(SLEEP_MAX));
        }
    }
}

/// Rounds of spinning when every rank can have a core: some 10 µs of an engine's idle rounds.
const SPINS_ALONE: u32 = 200;
/// When ranks share cores: enough for a peer that is running to finish a small step.
const SPINS_CROWDED: u32 = 4;
/// Rounds until sleep: some milliseconds of yields.
const YIELDS: u32 = 10_000;
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
const ROUNDS_PER_DOUBLING: u32 = 64;
/// Descriptors watched while asleep; with more, the timed poll alone must do for the rest.
const WATCHED_MAX: usize = 64;
