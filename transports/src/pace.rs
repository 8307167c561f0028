//! Waiting for another rank: spin, then yield, then sleep.
//!
//! A hand-over between two cores takes 0.2 µs when the receiver spins. If the
//! sender has no core, spinning only keeps it from getting one, and a yield
//! hands over in 2 µs. A yield to a stranger that computes costs his whole time
//! slice. Which of these it is, the length of the last yields tells: see
//! `Company`. Waking a sleeper on another core takes tens of microseconds, so
//! sleep comes last and is short: nobody has to remember to wake anybody. Where
//! sockets are watched, whatever arrives there ends a sleep.

use crate::Pace;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::sched_yield;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits as long as it takes, giving away more the longer it takes.
#[derive(Debug)]
pub struct Patience {
    begun: Instant,
    company: Company,
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
        let company = if local_ranks > cores { Company::of_peers() } else { Company::default() };
        Self { begun: Instant::now(), company, yields: None, since: None, sockets: None }
    }

    /// Sleeps end as soon as something happens on one of these sockets.
    #[must_use]
    pub fn watching(mut self, sockets: Vec<OwnedFd>) -> Self {
        // Without a watch, sleeps last their time: slower, not wrong.
        self.sockets = Sockets::watch(sockets).ok();
        self
    }

    /// Adds to what is watched, from any thread.
    pub fn watcher(&self) -> Option<Watcher> {
        self.sockets.as_ref().map(|sockets| Watcher(Arc::clone(&sockets.epoll)))
    }

    /// Sleeps after `yields` rounds beyond spinning: few where what is waited for wakes the sleeper, as sockets do.
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
        let spins = self.company.spins();
        if rounds <= 1 {
            self.since = None;
        }
        if rounds < spins {
            return std::hint::spin_loop();
        }
        let now = Instant::now();
        let idle = now - *self.since.get_or_insert(now);
        let patient = self.yields.map_or(idle < YIELD_TIME, |yields| rounds < spins.saturating_add(yields));
        match patient {
            true => {
                sched_yield();
                self.company.learn(now.elapsed());
            }
            // In proportion: a sleep prolongs no wait by much more than a sixteenth.
            false => self.sleep((idle / 16).clamp(SLEEP_MIN, SLEEP_MAX)),
        }
    }
}

/// Who else wants this core, as the last yields told.
#[derive(Clone, Copy, Debug, Default)]
struct Company {
    /// From 0, nobody, to [`PEERS_SURE`]: others that give the core back soon, as waiting peers do.
    peers: u8,
    /// Yields to go until a stranger that kept the core for long is tried again.
    wary: u8,
    /// More ranks than cores: then it is a peer that keeps the core for long, and rightly.
    shared: bool,
}

impl Company {
    fn of_peers() -> Self {
        Self { peers: PEERS_SURE, wary: 0, shared: true }
    }

    /// The round in which the core is given away first.
    fn spins(self) -> u32 {
        match self {
            Self { wary: 1.., .. } => SPINS_WARY,
            Self { peers: PEERS_LIKELY.., .. } => SPINS_CROWDED,
            _ => SPINS_ALONE,
        }
    }

    /// A yield took this long.
    fn learn(&mut self, took: Duration) {
        if took > YIELD_TO_STRANGER && !self.shared {
            self.wary = WARY;
        } else if took > YIELD_TO_NOBODY {
            self.peers = (self.peers + 2).min(PEERS_SURE);
            self.wary = self.wary.saturating_sub(1);
        } else {
            self.peers = self.peers.saturating_sub(1);
            self.wary = self.wary.saturating_sub(1);
        }
    }
}

/// Sockets whose news end a sleep.
///
/// Each piece of news ends one sleep, and no more (edge triggered): a note that is left unread for
/// a while, or a peer that is gone for good, must not turn sleep into a busy loop.
#[derive(Debug)]
struct Sockets {
    epoll: Arc<OwnedFd>,
    /// Keeps what is watched open.
    _watched: Vec<OwnedFd>,
}

/// What ends the sleeps of one rank.
#[derive(Clone, Debug)]
pub struct Watcher(Arc<OwnedFd>);

impl Watcher {
    /// Watches a socket for as long as it is open. That it can be written is news, too: it ends a sleep now.
    pub fn add(&self, socket: &impl AsFd) {
        // Unwatched, it is noticed when the sleep ends: slower, not wrong.
        let _ = watch(&self.0, socket);
    }
}

fn watch(epoll: &OwnedFd, socket: &impl AsFd) -> rustix::io::Result<()> {
    use epoll::{EventData, EventFlags};
    let news = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, socket, EventData::new_u64(0), news)
}

impl Sockets {
    fn watch(sockets: Vec<OwnedFd>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for socket in &sockets {
            watch(&epoll, socket)?;
        }
        Ok(Self { epoll: Arc::new(epoll), _watched: sockets })
    }

    /// Sleeps for `time`, which is below a second, or until there is news.
    fn sleep(&self, time: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        // An interrupted or failed poll is only a shorter sleep.
        if poll(&mut [PollFd::new(&*self.epoll, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
        {
            let mut news = [const { MaybeUninit::uninit() }; NEWS_MAX];
            let _ = epoll::wait(&*self.epoll, &mut news, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
    }
}

/// Rounds of spinning when nobody else wants the core: some microseconds of an engine's idle rounds,
/// beyond which a yield to nobody adds little.
const SPINS_ALONE: u32 = 60;
/// When peers share it: none, as who is waited for most likely waits for the core.
const SPINS_CROWDED: u32 = 1;
/// When a stranger would take it for long: about as long as his slice.
const SPINS_WARY: u32 = 20_000;
/// A yield that comes back so soon went to nobody; a switch to another process and back takes longer.
const YIELD_TO_NOBODY: Duration = Duration::from_nanos(900);
/// A waiting peer gives the core back long before.
const YIELD_TO_STRANGER: Duration = Duration::from_micros(700);
const PEERS_SURE: u8 = 8;
const PEERS_LIKELY: u8 = 4;
const WARY: u8 = 4;
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
    fn yields_tell_who_else_wants_the_core() {
        let learnt = |from: Company, yields: &[u64]| {
            let mut company = from;
            yields.iter().for_each(|&micros| company.learn(Duration::from_micros(micros)));
            company.spins()
        };
        let (alone, crowded) = (Company::default(), Company::of_peers());
        assert_eq!(learnt(alone, &[0, 2, 0]), SPINS_ALONE, "one switch is no company");
        assert_eq!(learnt(alone, &[2, 3]), SPINS_CROWDED);
        assert_eq!(learnt(alone, &[4000]), SPINS_WARY);
        assert_eq!(learnt(alone, &[4000, 0, 0, 0, 0]), SPINS_ALONE, "the stranger has left");
        assert_eq!(learnt(crowded, &[4000]), SPINS_CROWDED, "a peer at work");
        assert_eq!(learnt(crowded, &[0; 8]), SPINS_ALONE, "the peers have left");
    }

    #[test]
    fn a_new_wait_begins_with_spinning() {
        let mut pace = Patience::new(1);
        rounds(&mut pace, 3 * YIELD_TIME);
        // Whoever else was at work meanwhile is forgotten.
        pace.company = Company::default();
        let begun = Instant::now();
        (1..SPINS_ALONE).for_each(|rounds| pace.pause(rounds));
        assert!(pace.since.is_none(), "it yields or sleeps at once");
        pace.pause(SPINS_ALONE);
        assert!(pace.since.is_some_and(|since| since >= begun), "the clock of the wait before still runs");
    }

    #[test]
    fn news_ends_a_sleep_but_only_once() {
        let (pace, mut far) = watcher();
        let slept = |pace: &Patience| {
            let begun = Instant::now();
            pace.sleep(Duration::from_millis(600));
            begun.elapsed()
        };
        for end in [false, true] {
            match end {
                false => far.write_all(&[1]).unwrap(),
                true => drop(far.try_clone().map(|far| far.shutdown(std::net::Shutdown::Both))),
            }
            assert!(slept(&pace) < Duration::from_millis(300), "news was slept through");
            assert!(slept(&pace) > Duration::from_millis(590), "unread news keeps everybody awake");
        }
    }
}
