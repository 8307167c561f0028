//! The timing of one wait, as a pure state machine that takes the time as an argument.
//!
//! The clock is not read in the first rounds of a wait, since most waits end within them.

use std::time::Duration;

/// The state of the current wait, reset whenever something makes progress.
#[derive(Debug)]
pub(super) struct Deadline {
    timeout: Duration,
    /// Rounds without progress.
    rounds: u32,
    /// Time of the first clock reading without progress.
    idle_since: Option<Duration>,
    next_poll: Duration,
    next_news: Duration,
    next_announce: Duration,
    next_warning: Duration,
}

impl Deadline {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            rounds: 0,
            idle_since: None,
            next_poll: Duration::ZERO,
            next_news: Duration::ZERO,
            next_announce: Duration::ZERO,
            next_warning: Duration::ZERO,
        }
    }

    /// Ends the current wait.
    #[inline]
    pub(super) fn progressed(&mut self) {
        self.rounds = 0;
        self.idle_since = None;
    }

    /// Counts a round without progress and returns the number of such rounds.
    pub(super) fn next_round(&mut self) -> u32 {
        self.rounds = self.rounds.saturating_add(1);
        self.rounds
    }

    /// Returns whether the wait has lasted long enough to read the clock.
    pub(super) fn needs_clock(&self) -> bool {
        self.rounds >= ROUNDS_WITHOUT_CLOCK
    }

    /// Returns whether links that nobody waits for are due for progress, so that their peers can go
    /// on.
    pub(super) fn should_progress_idle_links(&self) -> bool {
        self.rounds % ROUNDS_PER_PROGRESS == ROUNDS_PER_PROGRESS - 1 || self.rounds > ROUNDS_SPINNING
    }

    /// Returns the idle time if control messages are due to be read at `now`.
    ///
    /// The first call of a wait starts its timers and returns `None`.
    pub(super) fn poll_due(&mut self, now: Duration) -> Option<Duration> {
        let Some(idle_since) = self.idle_since else {
            self.idle_since = Some(now);
            self.next_poll = now + POLL_INTERVAL;
            self.next_announce = now + ANNOUNCE_AFTER;
            self.next_warning = now + WARN_AFTER.min(self.timeout / 2);
            return None;
        };
        if now < self.next_poll {
            return None;
        }
        self.next_poll = now + POLL_INTERVAL;
        Some(now.saturating_sub(idle_since))
    }

    /// Returns whether control messages are due to be read at `now`, outside of a wait.
    pub(super) fn news_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next_news;
        if due {
            self.next_news = now + POLL_INTERVAL;
        }
        due
    }

    /// Returns whether the rank has to announce its wait at `now`, and schedules the next
    /// announcement.
    pub(super) fn announce_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next_announce;
        if due {
            self.next_announce = now + ANNOUNCE_INTERVAL;
        }
        due
    }

    /// Returns whether a warning about this wait is due at `now`: once per wait.
    pub(super) fn warning_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next_warning;
        if due {
            self.next_warning = Duration::MAX;
        }
        due
    }

    /// Returns the longest time without progress.
    ///
    /// A rank that waits for ranks that wait in the same operation is granted a quarter more. Ranks
    /// nearer to the cause then report it first, and a cycle of such ranks still ends.
    pub(super) fn limit(&self, blocked_by_waiting_ranks: bool) -> Duration {
        let extra = if blocked_by_waiting_ranks { self.timeout / 4 } else { Duration::ZERO };
        self.timeout.saturating_add(extra)
    }
}

/// Rounds between two polls of an idle link, because polling a socket in vain is a system call.
const ROUNDS_PER_PROGRESS: u32 = 8;
/// Rounds of a wait before the clock is read. Later rounds yield the core, and on a busy host a few
/// of them take a tenth of a second.
pub(crate) const ROUNDS_WITHOUT_CLOCK: u32 = 64;
/// Rounds after which latency does not matter and idle links are polled in every round.
const ROUNDS_SPINNING: u32 = 4096;
/// Time between two readings of control messages.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time before a rank announces its wait to the others, and between two announcements.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(250);
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// Time before a wait is logged as a warning, unless half of the timeout is shorter.
const WARN_AFTER: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn deadline_first_poll_starts_timers_and_progress_restarts_them() {
        let mut deadline = Deadline::new(Duration::from_secs(10));
        assert_eq!(deadline.poll_due(5 * MS), None, "the first reading starts the wait");
        assert_eq!(deadline.poll_due(5 * MS), None, "the interval is not over");
        assert_eq!(deadline.poll_due(7 * MS), Some(2 * MS));
        deadline.progressed();
        assert_eq!(deadline.poll_due(100 * MS), None, "the idle time begins again");
    }

    #[test]
    fn deadline_announces_repeatedly_and_warns_once() {
        let mut deadline = Deadline::new(Duration::from_secs(2));
        assert_eq!(deadline.poll_due(Duration::ZERO), None);
        assert!(!deadline.announce_due(ANNOUNCE_AFTER - MS) && deadline.announce_due(ANNOUNCE_AFTER));
        assert!(!deadline.announce_due(ANNOUNCE_AFTER + MS));
        assert!(deadline.announce_due(ANNOUNCE_AFTER + ANNOUNCE_INTERVAL));
        assert!(!deadline.warning_due(999 * MS) && deadline.warning_due(1000 * MS));
        assert!(!deadline.warning_due(Duration::from_secs(3600)));
    }

    #[test]
    fn deadline_reads_clock_only_in_later_rounds() {
        let mut deadline = Deadline::new(Duration::from_secs(10));
        (1..ROUNDS_WITHOUT_CLOCK).for_each(|_| _ = deadline.next_round());
        assert!(!deadline.needs_clock());
        deadline.next_round();
        assert!(deadline.needs_clock());
        deadline.progressed();
        assert!(!deadline.needs_clock());
    }

    #[test]
    fn deadline_limit_of_unlimited_timeout_does_not_overflow() {
        assert_eq!(Deadline::new(Duration::MAX).limit(true), Duration::MAX);
        assert_eq!(Deadline::new(4 * MS).limit(true), 5 * MS);
        assert_eq!(Deadline::new(4 * MS).limit(false), 4 * MS);
    }
}
