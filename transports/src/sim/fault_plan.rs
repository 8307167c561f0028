//! Delays and faults of the simulated network.

use crate::rng::{Rng, mix};
use std::time::Duration;

/// Delays and faults of the simulated network.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Seed of every delay.
    pub seed: u64,
    /// Shortest delay. It is never less than a nanosecond.
    pub delay_min: Duration,
    /// Longest delay. Messages of different lanes can overtake each other, but messages of one lane
    /// cannot.
    pub delay_max: Duration,
    /// Factor by which some routes between two ranks may be slower. It is at least 1.
    pub max_slowdown: u32,
    /// Time without an answer after which a kernel gives up a control connection, whose other end
    /// is then reset. With `None`, kernels never give up or reset a connection.
    pub keepalive_timeout: Option<Duration>,
    /// Ranks of the first fabric whose kernels wait four times as long. This models jobs with such
    /// settings, and kernels that send no keepalive probes while much unread data is in flight.
    pub long_timeout_ranks: RankSet,
    /// Faults that happen.
    pub faults: Vec<Fault>,
    /// Time at which the simulation ends for all ranks. A rank that still waits then would wait
    /// forever.
    pub max_time: Duration,
}

/// A fault. Ranks are numbered as in the first fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A rank dies.
    Death {
        /// The rank.
        rank: usize,
        /// Moment of the death.
        at: Trigger,
        /// True if the host stays alive and its kernel tells the other ranks. Otherwise the host
        /// vanishes, and no rank is told.
        announced: bool,
    },
    /// A rank does nothing for some time.
    Stall {
        /// The rank.
        rank: usize,
        /// Start of the stall. The first wait from then on lasts until the end of the stall.
        from: Duration,
        /// Length of the stall.
        duration: Duration,
    },
    /// No packet passes from some ranks to others. If this holds in both directions, it is a
    /// partition. In one direction, it is a half-open connection.
    Partition {
        /// The senders.
        from: RankSet,
        /// The receivers.
        to: RankSet,
        /// True if nothing passes in the other direction either.
        both_ways: bool,
        /// Start of the partition.
        at: Duration,
        /// Length of the partition, or `None` if it never ends. Packets that are sent during the
        /// partition arrive after it, because TCP sends them again.
        duration: Option<Duration>,
    },
}

/// Moment of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At this time.
    Time(Duration),
    /// After this many deliveries, which may lie between two messages of one exchange.
    Deliveries(u64),
}

/// A set of ranks, each below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSet(pub u64);

impl RankSet {
    /// Returns true if `rank` is in the set.
    pub fn contains(self, rank: usize) -> bool {
        rank < 64 && self.0 >> rank & 1 == 1
    }
}

impl FaultPlan {
    /// Returns a plan without faults: only delays between 1 and 50 µs.
    pub fn none(seed: u64) -> Self {
        let (delay_min, delay_max) = (Duration::from_micros(1), Duration::from_micros(50));
        Self {
            seed,
            delay_min,
            delay_max,
            max_slowdown: 1,
            keepalive_timeout: None,
            long_timeout_ranks: RankSet(0),
            faults: Vec::new(),
            max_time: MAX_TIME,
        }
    }

    /// Returns a random plan that `seed` gives for this many ranks. Delays vary widely, and there
    /// are zero to three faults. Operations that wait fail after `timeout`, so stalls last for some
    /// part of that, or longer.
    pub fn random(seed: u64, ranks: usize, timeout: Duration) -> Self {
        let mut random = Rng::new(seed, FAULT_STREAM);
        let delay_max = Duration::from_micros(random.choose(&[2, 50, 50, 400]));
        let slowness_max = random.choose(&[1, 1, 8, 100]);
        let count = random.choose(&[0, 1, 1, 1, 1, 2, 2, 3]);
        // Most plans have only deaths: they are the most common fault, and cheap to simulate.
        let only_deaths = !random.one_in(3);
        let mut faults: Vec<Fault> =
            (0..count).map(|_| Fault::random(&mut random, ranks, timeout, only_deaths)).collect();
        let mut random = Rng::new(seed, HEALING_STREAM);
        faults.extend(random.one_in(8).then(|| Fault::random_healing_partition(&mut random, ranks, timeout)));
        Self {
            delay_max,
            max_slowdown: slowness_max,
            keepalive_timeout: Some(timeout),
            faults,
            ..Self::none(seed)
        }
    }

    /// Returns the time without an answer from `other` after which the kernel of `host` gives up,
    /// if it ever does. The kernel probes only now and then, so the time is up to a third longer
    /// than configured. In half of all networks it differs by host, in the others by connection.
    pub(super) fn host_keepalive_timeout(&self, host: usize, other: usize) -> Option<Duration> {
        let connection = if self.seed.is_multiple_of(2) { 0 } else { 1 + other as u64 };
        let drawn = [KEEPALIVE_STREAM, host as u64, connection].into_iter().fold(self.seed, mix) % 1000;
        let times = if self.long_timeout_ranks.contains(host) { 4 } else { 1 };
        self.keepalive_timeout.map(|silence| times * silence + silence / 3000 * drawn as u32)
    }

    /// Returns true if the kernel of `host` resets the other end when it gives up.
    pub(super) fn resets_on_timeout(&self, host: usize) -> bool {
        mix(mix(self.seed, RESET_STREAM), host as u64).is_multiple_of(2)
    }

    /// Returns the starts and ends of the partitions that stop a request or its answer between two
    /// ranks.
    pub fn partitions_between(&self, one: usize, other: usize) -> impl Iterator<Item = (Duration, Duration)> {
        let span = move |fault: &Fault| match *fault {
            Fault::Partition { from, to, at, duration: lasts, .. } => {
                let hit =
                    from.contains(one) && to.contains(other) || from.contains(other) && to.contains(one);
                hit.then_some((at, lasts.map_or(Duration::MAX, |lasts| at.saturating_add(lasts))))
            }
            _ => None,
        };
        self.faults.iter().filter_map(span)
    }

    /// Returns the time since which no request between these two ranks is answered, or `None` if
    /// requests are answered. Partitions may follow each other without a gap.
    pub(super) fn unanswered_since(&self, rank: usize, other: usize, now: Duration) -> Option<Duration> {
        let mut earliest = now;
        while let Some((start, _)) =
            self.partitions_between(rank, other).find(|&(start, end)| start < earliest && earliest <= end)
        {
            earliest = start;
        }
        (earliest < now).then_some(earliest)
    }

    /// Returns the factor by which the route between two ranks is slower than usual. All orders of
    /// magnitude are equally likely.
    pub(super) fn slowdown(&self, sender: usize, receiver: usize) -> u64 {
        let scales = u64::from(self.max_slowdown.max(1).ilog2()) + 1;
        let drawn =
            [SLOWDOWN_STREAM, sender as u64, receiver as u64].into_iter().fold(self.seed, mix) % scales;
        1 << drawn
    }

    /// Returns the time until which nothing passes from one rank to another, or `None` if packets
    /// pass at this time.
    pub(super) fn partitioned_until(
        &self,
        sender: usize,
        receiver: usize,
        now: Duration,
    ) -> Option<Duration> {
        let ends = |fault: &Fault| match fault {
            Fault::Partition { from, to, both_ways, at, duration: lasts } => {
                let hit = from.contains(sender) && to.contains(receiver)
                    || *both_ways && from.contains(receiver) && to.contains(sender);
                let end = lasts.map_or(Duration::MAX, |lasts| at.saturating_add(lasts));
                (hit && (*at..end).contains(&now)).then_some(end)
            }
            _ => None,
        };
        self.faults.iter().filter_map(ends).max()
    }

    /// Returns the time at which the present stall of a rank ends.
    pub(super) fn stalled_until(&self, stalled: usize, now: Duration) -> Option<Duration> {
        let ends = |fault: &Fault| match *fault {
            Fault::Stall { rank, from, duration: lasts } if rank == stalled => {
                let end = from.saturating_add(lasts);
                (from..end).contains(&now).then_some(end)
            }
            _ => None,
        };
        self.faults.iter().filter_map(ends).max()
    }
}

impl Fault {
    fn random(random: &mut Rng, ranks: usize, timeout: Duration, only_deaths: bool) -> Self {
        let rank = random.below(ranks);
        // Most runs are over after a few milliseconds. Later times belong to recovery.
        let spans: [usize; 4] = [300, 3_000, 30_000, 2_000_000];
        let span = random.choose(&spans);
        let time = Duration::from_micros(random.below(span) as u64);
        let part = |random: &mut Rng| timeout * random.choose(&[1, 2, 4, 9, 14, 40]) / 10;
        match random.below(if only_deaths { 4 } else { 8 }) {
            0 | 1 => Self::Death { rank, at: Trigger::Deliveries(random.below(500) as u64), announced: true },
            2 | 3 => Self::Death { rank, at: Trigger::Time(time), announced: true },
            4 => Self::Death { rank, at: Trigger::Time(time), announced: false },
            5 => Self::Stall { rank, from: time, duration: part(random) },
            way => {
                let senders = RankSet(1 << rank | random.next_u64() & random.next_u64());
                let lasts = random.one_in(2).then(|| part(random));
                Self::Partition {
                    from: senders,
                    to: RankSet(!senders.0),
                    both_ways: way == 6,
                    at: time,
                    duration: lasts,
                }
            }
        }
    }

    /// A partition that ends when some kernels have given up their connections, and others have
    /// not.
    fn random_healing_partition(random: &mut Rng, ranks: usize, timeout: Duration) -> Self {
        let senders = RankSet(1 << random.below(ranks) | random.next_u64() & random.next_u64());
        let time = Duration::from_micros(random.below(3_000) as u64);
        let lasts = Some(timeout * (100 + random.below(35) as u32) / 100);
        Self::Partition {
            from: senders,
            to: RankSet(!senders.0),
            both_ways: random.one_in(2),
            at: time,
            duration: lasts,
        }
    }
}

/// Longer than any simulated run takes.
const MAX_TIME: Duration = Duration::from_secs(600);
/// Makes the numbers that are drawn here differ from numbers that are drawn from the same seed
/// elsewhere.
const FAULT_STREAM: u64 = 0x0077_6561_7468_6572;
const HEALING_STREAM: u64 = 0x6865_616c;
const SLOWDOWN_STREAM: u64 = 0x736c_6f77;
const KEEPALIVE_STREAM: u64 = 0x7061_7469;
const RESET_STREAM: u64 = 0x7361_7973;
