//! Estimates which other threads need a core, from the durations of yields on this core.
//!
//! If a yield returns at once, no other thread ran. If it returns within microseconds, a waiting
//! peer ran. If it takes long, a process that computes ran, and the yield cost a whole time slice.
//! Waits then sleep for some time, and yield again after it. If a yield again takes long before
//! yields have been short for some time, the process is still there. The next time of sleeping is
//! then twice as long.

use std::time::{Duration, Instant};

/// Estimate of one rank of the other threads that want its core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuContention {
    /// Likelihood that other threads, such as waiting peers, share the core and return it soon. It
    /// ranges from 0 to [`SHARING_MAX`].
    sharing: u8,
    /// True while waits sleep, because a process kept the core for long.
    is_contended: bool,
    /// End of the last time in which waits slept.
    contended_until: Option<Instant>,
    /// Length of that time, or zero if the process seems to have left.
    contended_for: Duration,
    /// Total time of yields since then, all of which were short.
    yielded: Duration,
    /// True if the host has more ranks than cores, so that the awaited peer may need this core.
    oversubscribed: bool,
}

impl CpuContention {
    /// Creates the estimate. `oversubscribed` is true if the host has fewer cores than ranks.
    pub(super) fn new(oversubscribed: bool) -> Self {
        let sharing = if oversubscribed { SHARING_MAX } else { 0 };
        Self { sharing, oversubscribed, ..Self::default() }
    }

    /// Returns the round in which the core is first yielded.
    #[inline]
    pub(super) fn spin_rounds(&self) -> u32 {
        match self {
            Self { is_contended: true, oversubscribed: true, .. } => SPINS_CONTENDED_AND_SHARED,
            Self { is_contended: true, .. } => SPINS_CONTENDED,
            Self { sharing: SHARING_LIKELY.., .. } => SPINS_SHARED,
            _ => SPINS_ALONE,
        }
    }

    /// Returns true while a process that computes shares the core with this thread.
    pub(super) fn is_contended(&mut self, now: Instant) -> bool {
        self.is_contended &= self.contended_until.is_some_and(|end| now < end);
        self.is_contended
    }

    /// Records how long a yield took that began at `start`.
    pub(super) fn record_yield(&mut self, start: Instant, took: Duration) {
        let peers_at_most = if self.oversubscribed { YIELD_TO_PEERS_MAX } else { YIELD_TO_PEER_MAX };
        if took > peers_at_most {
            self.contended_for = (self.contended_for * 2).clamp(CONTENDED_MIN, CONTENDED_MAX);
            self.contended_until = Some(start + took + self.contended_for);
            self.is_contended = true;
            self.yielded = Duration::ZERO;
            return;
        }
        // After a sleep, the scheduler gives the core to a rank for about a time slice, even if the
        // rank yields. So only yields over a longer time show that the process has left.
        self.yielded = (self.yielded + took).min(YIELDED_MAX);
        if self.yielded == YIELDED_MAX {
            self.contended_for = Duration::ZERO;
        }
        self.sharing = match took > YIELD_ALONE_MAX {
            true => (self.sharing + 2).min(SHARING_MAX),
            false => self.sharing.saturating_sub(1),
        };
    }
}

// A value reaches another core in 0.2 µs if the receiver spins. It takes 2 µs if the sender had no
// core and the receiver yields. Waking a sleeping thread on another core takes tens of
// microseconds.
/// Rounds of spinning if no other thread wants the core. They take some microseconds of an engine's
/// idle rounds. After them a yield to no thread adds little.
pub(super) const SPINS_ALONE: u32 = 60;
/// Rounds of spinning if peers share the core. A wait hardly spins, because the awaited peer most
/// likely waits for the core.
pub(super) const SPINS_SHARED: u32 = 1;
/// Rounds of spinning if an unrelated process wants the core. A sleep takes longer than most waits
/// for a running peer, but is much shorter than a wait for a peer whose core another process uses.
const SPINS_CONTENDED: u32 = 400;
/// Rounds of spinning if an unrelated process and peers want the core. The awaited peer may be one
/// of these peers.
const SPINS_CONTENDED_AND_SHARED: u32 = 20;
/// Time for which waits sleep after a yield that took long.
const CONTENDED_MIN: Duration = Duration::from_millis(4);
const CONTENDED_MAX: Duration = Duration::from_millis(250);
/// Total time of short yields after which the process seems to have left.
const YIELDED_MAX: Duration = Duration::from_millis(10);
/// Longest yield in which no other thread ran. A switch to another process and back takes longer.
const YIELD_ALONE_MAX: Duration = Duration::from_nanos(900);
/// Longest yield to a waiting peer, which returns the core much sooner.
const YIELD_TO_PEER_MAX: Duration = Duration::from_micros(700);
/// Longest yield to several peers, each of which may do some work. A process that computes keeps
/// the core for its time slice, some milliseconds.
const YIELD_TO_PEERS_MAX: Duration = Duration::from_micros(1300);
const SHARING_MAX: u8 = 8;
const SHARING_LIKELY: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Records yields that began and took so many microseconds after a moment.
    fn after(mut contention: CpuContention, moment: Instant, yields: &[(u64, u64)]) -> CpuContention {
        for &(start, took) in yields {
            let [start, took] = [start, took].map(Duration::from_micros);
            contention.is_contended(moment + start);
            contention.record_yield(moment + start, took);
        }
        contention
    }

    #[test]
    fn yield_duration_detects_sharing() {
        let now = Instant::now();
        let learned = |start, yields: &[(u64, u64)]| after(start, now, yields).spin_rounds();
        let (alone, oversubscribed) = (CpuContention::new(false), CpuContention::new(true));
        assert_eq!(learned(alone, &[(0, 0), (1, 2), (3, 0)]), SPINS_ALONE, "one switch is no contention");
        assert_eq!(learned(alone, &[(0, 2), (2, 3)]), SPINS_SHARED);
        assert_eq!(learned(oversubscribed, &[]), SPINS_SHARED);
        assert_eq!(learned(oversubscribed, &[(0, 0); 8]), SPINS_ALONE, "the peers have left");
        assert_eq!(learned(alone, &[(0, 4000)]), SPINS_CONTENDED);
        assert_eq!(learned(oversubscribed, &[(0, 4000)]), SPINS_CONTENDED_AND_SHARED);
    }

    #[test]
    fn long_yields_are_avoided_for_longer_and_longer() {
        let now = Instant::now();
        let sleeps_at = |yields: &[(u64, u64)], moment| {
            [false, true].map(|oversubscribed| {
                let mut contention = after(CpuContention::new(oversubscribed), now, yields);
                contention.is_contended(now + Duration::from_micros(moment))
            })
        };
        assert_eq!(sleeps_at(&[(0, 2), (2, 3)], 5), [false; 2], "a peer returns the core");
        assert_eq!(sleeps_at(&[(0, 1000)], 1000), [true, false], "several peers may work");
        assert_eq!(sleeps_at(&[(0, 4000)], 7999), [true; 2], "a process computes");
        assert_eq!(sleeps_at(&[(0, 4000)], 8000), [false; 2], "it may have left");
        let still_there = [(0, 4000), (8000, 3), (8100, 4000)];
        assert_eq!(sleeps_at(&still_there, 20_099), [true; 2]);
        assert_eq!(sleeps_at(&still_there, 20_100), [false; 2]);
        let seldom = [(0, 4000), (8000, 3), (50_000, 4000)];
        assert_eq!(sleeps_at(&seldom, 61_999), [true; 2]);
        assert_eq!(sleeps_at(&seldom, 62_000), [false; 2]);
        let mut another = vec![(0, 4000)];
        another.extend((0..20).map(|turn| (8000 + turn * 600, 600)));
        another.push((50_000, 4000));
        assert_eq!(sleeps_at(&another, 57_999), [true; 2]);
        assert_eq!(sleeps_at(&another, 58_000), [false; 2], "the first has left");
        let always: Vec<_> = (0..100).map(|turn| (turn * 4000, 4000)).collect();
        assert_eq!(sleeps_at(&always, 400_000 + 249_999), [true; 2]);
        assert_eq!(sleeps_at(&always, 400_000 + 250_000), [false; 2], "the time is bounded");
    }
}
