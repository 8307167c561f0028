//! Waiting for another rank: spin, then yield, then sleep.
//!
//! A hand-over between two cores takes 0.2 µs when the receiver spins. If the
//! sender has no core, spinning only keeps it from getting one, and a yield
//! hands over in 2 µs. Waking a sleeper on another core takes tens of
//! microseconds, so sleep comes last and is short: nobody has to remember to
//! wake anybody. Where sockets are watched, whatever arrives there ends a sleep.

use crate::Pace;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::sched_yield;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Waits as long as it takes, giving away more the longer it takes.
#[derive(Debug)]
pub struct Patience {
    begun: Instant,
    /// Rounds of spinning.
    spins: u32,
    /// Rounds after which it sleeps, if the clock is not to decide.
    yields: Option<u32>,
    /// When the spinning of this wait ended.
    since: Option<Instant>,
    sockets: Option<Sockets>,
}

impl Patience {
    /// For one of `local_ranks` ranks that share this host's cores.
    pub fn new(local_ranks: usize) -> Self {
        // What this process may use: its affinity, and the quota of its container.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let spins = if local_ranks > cores { SPINS_CROWDED } else { SPINS_ALONE };
        Self { begun: Instant::now(), spins, yields: None, since: None, sockets: None }
    }

    /// Sleeps end as soon as something happens on one of these sockets.
    #[must_use]
    pub fn watching(mut self, sockets: Vec<OwnedFd>) -> Self {
        // Without a watch, sleeps last their time: slower, not wrong.
        self.sockets = Sockets::watch(sockets).ok();
        self
    }

    /// Sleeps after `yields` rounds: few where what is waited for wakes the sleeper, as sockets do.
    #[must_use]
    pub fn sleeping_after(mut self, yields: u32) -> Self {
        self.yields = Some(yields);
        self
    }

    fn sleep(&self, time: Duration) {
        match &self.sockets {
            Some(sockets) => sockets.sleep(time),
            None => std::thread::sleep(time),
        }
    }
}

impl Pace for Patience {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn pause(&mut self, rounds: u32) {
        if rounds < self.spins {
            self.since = None;
            return std::hint::spin_loop();
        }
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        let patient = self.yields.map_or(idle < YIELD_TIME, |yields| rounds < yields);
        match patient {
            true => sched_yield(),
            // In proportion: a sleep prolongs no wait by much more than a sixteenth.
            false => self.sleep((idle / 16).clamp(SLEEP_MIN, SLEEP_MAX)),
        }
    }
}

/// Sockets whose news end a sleep.
///
/// Each piece of news ends one sleep, and no more (edge triggered): a note that is left unread for
/// a while, or a peer that is gone for good, must not turn sleep into a busy loop.
#[derive(Debug)]
struct Sockets {
    epoll: OwnedFd,
    /// Keeps what is watched open.
    _watched: Vec<OwnedFd>,
}

impl Sockets {
    fn watch(sockets: Vec<OwnedFd>) -> rustix::io::Result<Self> {
        use epoll::{CreateFlags, EventData, EventFlags};
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let news = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        for socket in &sockets {
            epoll::add(&epoll, socket, EventData::new_u64(0), news)?;
        }
        Ok(Self { epoll, _watched: sockets })
    }

    /// Sleeps for `time`, which is below a second, or until there is news.
    fn sleep(&self, time: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        // An interrupted or failed poll is only a shorter sleep.
        if poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0) {
            let mut news = [const { MaybeUninit::uninit() }; NEWS_MAX];
            let _ = epoll::wait(&self.epoll, &mut news, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
    }
}

/// Rounds of spinning when every rank can have a core: some tens of microseconds of an engine's idle rounds.
const SPINS_ALONE: u32 = 1000;
/// When ranks share cores: enough for a peer that is running to finish a small step.
const SPINS_CROWDED: u32 = 4;
/// Time of yielding until sleep.
const YIELD_TIME: Duration = Duration::from_millis(4);
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// News acknowledged at once; more than that only end the next sleep as well.
const NEWS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// Rounds that fit into `time`, from the first.
    fn rounds(pace: &mut Patience, time: Duration) -> u32 {
        let begun = Instant::now();
        let rounds = (1..).inspect(|&rounds| pace.pause(rounds)).find(|_| begun.elapsed() > time);
        rounds.expect("time passes")
    }

    /// A pace that sleeps at once, and the far end of what it watches.
    fn watcher() -> (Patience, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let mut pace = Patience::new(usize::MAX).watching(vec![near.into()]).sleeping_after(SPINS_CROWDED);
        // A socket reports once that it can be written.
        rounds(&mut pace, Duration::from_millis(10));
        (pace, far)
    }

    #[test]
    fn long_waits_sleep() {
        for mut pace in [Patience::new(1), Patience::new(usize::MAX)] {
            // Nanoseconds that this thread has run, by the scheduler's account.
            let cpu = || {
                let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
                account.split(' ').next().unwrap().parse::<u64>().unwrap()
            };
            rounds(&mut pace, 4 * YIELD_TIME);
            let before = cpu();
            let begun = Instant::now();
            (100_000..100_040).for_each(|rounds| pace.pause(rounds));
            assert!(begun.elapsed() > Duration::from_millis(20));
            assert!(cpu() - before < 10_000_000, "{} ns of processor time asleep", cpu() - before);
        }
    }

    #[test]
    fn a_new_wait_begins_with_spinning() {
        let mut pace = Patience::new(1);
        rounds(&mut pace, 3 * YIELD_TIME);
        let begun = Instant::now();
        (1..SPINS_ALONE).for_each(|rounds| pace.pause(rounds));
        pace.pause(SPINS_ALONE);
        assert!(begun.elapsed() < Duration::from_millis(20));
        assert!(pace.since.is_some_and(|since| since >= begun), "the clock of the wait before still runs");
    }

    #[test]
    fn news_ends_a_sleep_but_only_once() {
        let (pace, mut far) = watcher();
        let slept = |pace: &Patience| {
            let begun = Instant::now();
            pace.sleep(Duration::from_millis(200));
            begun.elapsed()
        };
        for end in [false, true] {
            match end {
                false => far.write_all(&[1]).unwrap(),
                true => drop(far.try_clone().map(|far| far.shutdown(std::net::Shutdown::Both))),
            }
            assert!(slept(&pace) < Duration::from_millis(100), "news was slept through");
            assert!(slept(&pace) > Duration::from_millis(190), "unread news keeps everybody awake");
        }
    }
}
