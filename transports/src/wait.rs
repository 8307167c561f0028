//! Waits for another rank. A wait first spins, then yields, then sleeps.
//!
//! A receiver that spins sees a value from another core soonest. If the sender has no core,
//! spinning only keeps it from getting one, and a yield lets the sender run sooner. If an unrelated
//! process computes on the core, a yield costs the whole time slice of that process. The duration
//! of the last yields distinguishes these cases, see `CpuContention`. If such a process shares the
//! core, a wait sleeps, because the scheduler returns the core at once to a thread that slept.
//!
//! A sleep ends as soon as an awaited rank publishes something in memory that both share, or when
//! something happens on a watched socket. It also ends after some time, so correctness does not
//! depend on these events.
//!
//! If the same rank computes on another thread, a waiting thread sleeps soon ([`WaitMode::Block`]),
//! because the computation needs the core. A yield would not be enough. The scheduler returns the
//! core to a yielding thread as long as this thread has used it less than the computation.

mod contention;

use crate::shm::sleep::{Sleepers, WakeRequest};
use crate::sys::descriptors::off_stdio;
use crate::wait::contention::{CpuContention, SPINS_ALONE};
use crate::{WaitMode, WaitStrategy};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::sched_yield;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// A wait of any length. The longer it takes, the less of the core it uses.
#[derive(Debug)]
pub struct AdaptiveWait {
    started: Instant,
    contention: CpuContention,
    /// Number of rounds after which the wait sleeps. If it is `None`, the clock decides.
    yields: Option<u32>,
    /// Time at which the spinning of this wait ended.
    yielding_since: Option<Instant>,
    sockets: Option<Arc<WatchedSockets>>,
    sleepers: Option<Arc<Sleepers>>,
    /// The request to the awaited ranks to wake this rank, if it has been made.
    requested: Option<WakeRequest>,
    mode: WaitMode,
}

impl AdaptiveWait {
    /// Creates a wait for one of `local_ranks` ranks that share this host's cores.
    pub fn new(local_ranks: usize) -> Self {
        // This is the number of cores that this process may use, by its affinity and the quota of
        // its container.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            started: Instant::now(),
            contention: CpuContention::new(local_ranks > cores),
            yields: None,
            yielding_since: None,
            sockets: None,
            sleepers: None,
            requested: None,
            mode: WaitMode::Auto,
        }
    }

    /// Ends a sleep as soon as an event happens on one of these sockets.
    #[must_use]
    pub fn wake_on(mut self, sockets: Vec<OwnedFd>) -> Self {
        // If sockets cannot be watched, a sleep lasts its full time. This is slower but still
        // correct.
        self.sockets = WatchedSockets::new(sockets).ok().map(Arc::new);
        self
    }

    /// Returns a handle that adds sockets to the watched ones, from any thread.
    pub fn watcher(&self) -> Option<Watcher> {
        self.sockets.as_ref().map(|sockets| Watcher(Arc::clone(&sockets.epoll)))
    }

    /// Lets the ranks that share memory with this one end its sleeps.
    #[must_use]
    pub fn woken_by(mut self, sleepers: Arc<Sleepers>) -> Self {
        self.sleepers = Some(sleepers);
        self
    }

    /// Makes the wait sleep `yields` rounds after it has spun. A few rounds are enough if the
    /// awaited event wakes the sleeper, as an event on a socket does.
    #[must_use]
    pub fn sleep_after_yields(mut self, yields: u32) -> Self {
        self.yields = Some(yields);
        self
    }

    /// Sleeps until one of `awaited` wakes this rank. If some of them cannot wake it, sleeps for
    /// some time.
    ///
    /// The first call only requests to be woken. Then the caller checks once more, because the
    /// awaited event may have happened before the request.
    fn sleep(&mut self, least: Duration, idle: Duration, awaited: &mut dyn Iterator<Item = usize>) {
        // The time is proportional to the wait so far, so a sleep lengthens a wait by hardly more
        // than a sixteenth.
        let timed = (idle / 16).clamp(least, SLEEP_MAX);
        match (&self.sleepers, self.requested.take()) {
            (Some(sleepers), Some(request)) => match request.covers(awaited) {
                true => _ = sleepers.sleep(if request.is_certain() { SLEEP_MAX } else { timed }),
                // The caller now waits for another rank, so the next call makes a new request.
                false => sleepers.wake_up(),
            },
            (Some(sleepers), None) => {
                self.requested = sleepers.request(awaited);
                if self.requested.is_none() {
                    self.sleep_for(timed);
                }
            }
            (None, _) => self.sleep_for(timed),
        }
    }

    fn sleep_for(&self, time: Duration) {
        match &self.sockets {
            Some(sockets) => sockets.sleep(time),
            None => std::thread::sleep(time),
        }
    }
}

/// Lets another thread of a rank end its sleep.
struct OwnAlarm {
    sleepers: Option<Arc<Sleepers>>,
    sockets: Option<Arc<WatchedSockets>>,
}

impl Wake for OwnAlarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The rank sleeps on one of these two, and other threads do not know on which.
        self.sleepers.iter().for_each(|sleepers| sleepers.wake_own());
        self.sockets.iter().for_each(|sockets| sockets.wake());
    }
}

impl WaitStrategy for AdaptiveWait {
    fn waker(&self) -> Waker {
        Arc::new(OwnAlarm { sleepers: self.sleepers.clone(), sockets: self.sockets.clone() }).into()
    }

    fn set_mode(&mut self, mode: WaitMode) {
        self.mode = mode;
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn pause(&mut self, rounds: u32) {
        self.pause_for(rounds, &mut std::iter::empty());
    }

    fn pause_for(&mut self, rounds: u32, awaited: &mut dyn Iterator<Item = usize>) {
        let spins = match self.mode {
            WaitMode::Auto | WaitMode::Yield => self.contention.spin_rounds(),
            WaitMode::Block => SPINS_ALONE,
            WaitMode::Spin => u32::MAX,
        };
        if rounds <= 1 {
            self.yielding_since = None;
            if self.requested.take().is_some() {
                self.sleepers.iter().for_each(|sleepers| sleepers.wake_up());
            }
        }
        if rounds < spins {
            return std::hint::spin_loop();
        }
        let now = Instant::now();
        let idle = now - *self.yielding_since.get_or_insert(now);
        // The estimate is updated in every mode, because the number of spins depends on it.
        let contended = self.contention.is_contended(now) && self.mode == WaitMode::Auto;
        if self.mode == WaitMode::Block || contended {
            return self.sleep(BLOCK_SLEEP_MIN, idle, awaited);
        }
        let patient = self.mode == WaitMode::Yield
            || self.yields.map_or(idle < YIELD_TIME, |yields| rounds < spins.saturating_add(yields));
        match patient {
            true => {
                sched_yield();
                self.contention.record_yield(now, now.elapsed());
            }
            false => self.sleep(SLEEP_MIN, idle, awaited),
        }
    }
}

/// Sockets whose events end a sleep.
///
/// Each event ends only one sleep (edge triggered). Otherwise an unread control message, or a peer
/// that has gone, would turn sleeps into a busy loop.
#[derive(Debug)]
struct WatchedSockets {
    epoll: Arc<OwnedFd>,
    /// The sockets that are watched from the beginning. They are kept open.
    sockets: Vec<OwnedFd>,
}

/// Handle to the sockets that end the sleeps of one rank.
#[derive(Clone, Debug)]
pub struct Watcher(Arc<OwnedFd>);

impl Watcher {
    /// Watches a socket as long as it is open. Writability is also an event, so adding a writable
    /// socket ends a sleep at once.
    pub fn add(&self, socket: &impl AsFd) {
        // If the socket cannot be watched, its events are noticed when a sleep ends. This is slower
        // but still correct.
        let _ = watch(&self.0, socket);
    }
}

fn watch(epoll: &OwnedFd, socket: &impl AsFd) -> rustix::io::Result<()> {
    epoll::add(epoll, socket, epoll::EventData::new_u64(0), news())
}

/// Returns the events that end a sleep.
fn news() -> epoll::EventFlags {
    use epoll::EventFlags;
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}

impl WatchedSockets {
    fn new(sockets: Vec<OwnedFd>) -> std::io::Result<Self> {
        let epoll = off_stdio(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        for socket in &sockets {
            watch(&epoll, socket)?;
        }
        Ok(Self { epoll: Arc::new(epoll), sockets })
    }

    /// Ends the sleep, or the next one.
    fn wake(&self) {
        // Watching a socket again reports once more that it is writable, so no extra descriptor is
        // needed to wake. If no socket is writable at the moment, the sleep lasts its full time.
        for socket in &self.sockets {
            let _ = epoll::modify(&*self.epoll, socket, epoll::EventData::new_u64(0), news());
        }
    }

    /// Sleeps for `time`, which is below a second, or until an event.
    fn sleep(&self, time: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        // If the poll fails or is interrupted, the sleep is only shorter.
        if poll(&mut [PollFd::new(&*self.epoll, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
        {
            let mut news = [const { MaybeUninit::uninit() }; EVENTS_MAX];
            let _ = epoll::wait(&*self.epoll, &mut news, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
    }
}

/// Time of yielding before the first sleep.
const YIELD_TIME: Duration = Duration::from_millis(4);
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// Shortest sleep of a thread that waits beside a computation.
const BLOCK_SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Number of events that one poll acknowledges. If there are more, they also end the next sleep.
const EVENTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::HANG;
    use crate::wait::contention::SPINS_SHARED;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn events(sockets: &WatchedSockets) -> usize {
        let mut news = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&*sockets.epoll, &mut news, Some(&now)).unwrap().0.len()
    }

    #[test]
    fn another_thread_ends_a_sleep_on_sockets() {
        let (local, _remote) = UnixStream::pair().unwrap();
        let wait = AdaptiveWait::new(1).wake_on(vec![local.into()]);
        let sockets = Arc::clone(wait.sockets.as_ref().unwrap());
        assert_eq!((events(&sockets), events(&sockets)), (1, 0), "a writable socket reports once");
        std::thread::scope(|scope| scope.spawn(|| wait.waker().wake()).join().unwrap());
        assert_eq!(events(&sockets), 1);
    }

    /// Counts the rounds that fit into `time`, from the first.
    fn rounds(pace: &mut AdaptiveWait, time: Duration) -> u32 {
        let begun = Instant::now();
        let rounds = (1..).inspect(|&rounds| pace.pause(rounds)).find(|_| begun.elapsed() > time);
        rounds.expect("time passes")
    }

    /// Returns a wait that sleeps at once, and the far end of the socket that it watches.
    fn watcher() -> (AdaptiveWait, UnixStream) {
        let (local, remote) = UnixStream::pair().unwrap();
        let mut pace =
            AdaptiveWait::new(usize::MAX).wake_on(vec![local.into()]).sleep_after_yields(SPINS_SHARED);
        // A socket reports once that it can be written.
        rounds(&mut pace, Duration::from_millis(10));
        (pace, remote)
    }

    #[test]
    fn long_waits_sleep() {
        for mut pace in [AdaptiveWait::new(1), AdaptiveWait::new(usize::MAX)] {
            // Nanoseconds that this thread has run, by the scheduler's account.
            let cpu = || {
                let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
                account.split(' ').next().unwrap().parse::<u64>().unwrap()
            };
            rounds(&mut pace, 4 * YIELD_TIME);
            let start = cpu();
            let begun = Instant::now();
            (100_000..100_040).for_each(|rounds| pace.pause(rounds));
            assert!(begun.elapsed() > Duration::from_millis(20));
            assert!(cpu() - start < 10_000_000, "{} ns of processor time asleep", cpu() - start);
        }
    }

    #[test]
    fn blocking_waits_use_little_processor_time() {
        let mut wait = AdaptiveWait::new(1);
        wait.set_mode(WaitMode::Block);
        (1..SPINS_ALONE).for_each(|rounds| wait.pause(rounds));
        let rounds = rounds(&mut wait, 2 * YIELD_TIME) - SPINS_ALONE;
        assert!(rounds < 400, "{rounds} rounds in {YIELD_TIME:?} are no sleep");
    }

    #[test]
    fn new_wait_starts_by_spinning() {
        let mut pace = AdaptiveWait::new(1);
        rounds(&mut pace, 3 * YIELD_TIME);
        // Forget other threads that ran meanwhile.
        pace.contention = CpuContention::default();
        let begun = Instant::now();
        (1..SPINS_ALONE).for_each(|rounds| pace.pause(rounds));
        assert!(pace.yielding_since.is_none(), "it yields or sleeps at once");
        pace.pause(SPINS_ALONE);
        assert!(
            pace.yielding_since.is_some_and(|start| start >= begun),
            "the clock of the wait before still runs"
        );
    }

    #[test]
    fn event_wakes_sleep_once() {
        let (pace, mut far) = watcher();
        let slept = |pace: &AdaptiveWait, time| {
            let begun = Instant::now();
            pace.sleep_for(time);
            begun.elapsed()
        };
        for end in [false, true] {
            match end {
                false => far.write_all(&[1]).unwrap(),
                true => drop(far.try_clone().map(|far| far.shutdown(std::net::Shutdown::Both))),
            }
            assert!(slept(&pace, HANG) < HANG, "news was slept through");
            let short = Duration::from_millis(200);
            assert!(slept(&pace, short) >= short * 9 / 10, "unread news keeps everybody awake");
        }
    }
}
