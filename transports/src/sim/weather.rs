//! What the network does to its users.

use super::random::{Random, stir};
use std::time::Duration;

/// What the network does to its users.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Decides every delay.
    pub seed: u64,
    /// Shortest time on the way; never less than a nanosecond.
    pub delay_min: Duration,
    /// Longest time on the way. Messages of different lanes overtake each other, those of one never.
    pub delay_max: Duration,
    /// How many times slower than that some ways between two ranks may be; at least 1.
    pub slowness_max: u32,
    /// After how long without an answer kernels give a connection for notes up, whose other end is then reset. None: they
    /// never do, and never reset one.
    pub silence: Option<Duration>,
    /// Ranks of the first mesh whose kernels bear four times that: their jobs may be set so, and who sends much that is not
    /// read does not ask.
    pub patient: Ranks,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// When the simulation ends for everybody: who is still waiting then would wait for ever.
    pub ends: Duration,
}

/// Something that goes wrong. Ranks are those of the first mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A rank dies.
    Death {
        /// Which one.
        rank: usize,
        /// When.
        at: Moment,
        /// Whether its host lives on and tells the others, as kernels do; else it vanishes, and nobody is told.
        told: bool,
    },
    /// A rank does nothing for a while.
    Stall {
        /// Which one.
        rank: usize,
        /// Since when: its first wait from then on lasts until the end of the stall.
        from: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Nothing passes from some ranks to others; both ways between two sets is a partition, one way a connection
    /// that is half open.
    Cut {
        /// From whom.
        from: Ranks,
        /// To whom.
        to: Ranks,
        /// Whether nothing passes the other way either.
        both_ways: bool,
        /// Since when.
        at: Duration,
        /// For how long; for ever if none. What was sent meanwhile arrives afterwards, as TCP sends it again.
        lasts: Option<Duration>,
    },
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At this time.
    Time(Duration),
    /// When so many things have been delivered: between two words of a conversation.
    Deliveries(u64),
}

/// A set of ranks, each below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks(pub u64);

impl Ranks {
    /// Whether `rank` is one of them.
    pub fn has(self, rank: usize) -> bool {
        rank < 64 && self.0 >> rank & 1 == 1
    }
}

impl Weather {
    /// Delays between 1 and 50 µs, nothing worse.
    pub fn fair(seed: u64) -> Self {
        let (delay_min, delay_max) = (Duration::from_micros(1), Duration::from_micros(50));
        Self {
            seed,
            delay_min,
            delay_max,
            slowness_max: 1,
            silence: None,
            patient: Ranks(0),
            faults: Vec::new(),
            ends: ENDS,
        }
    }

    /// Any weather that `seed` gives for so many ranks: delays of very different length, and from none to three
    /// faults. Those that wait fail after `timeout`, so stalls last for some part of that, or longer.
    pub fn drawn(seed: u64, ranks: usize, timeout: Duration) -> Self {
        let mut random = Random::new(seed, STREAM);
        let delay_max = Duration::from_micros(random.pick(&[2, 50, 50, 400]));
        let slowness_max = random.pick(&[1, 1, 8, 100]);
        let count = random.pick(&[0, 1, 1, 1, 1, 2, 2, 3]);
        // Mostly deaths: they are what most people meet, and cheap to simulate.
        let only_deaths = !random.once_in(3);
        let mut faults: Vec<Fault> =
            (0..count).map(|_| Fault::drawn(&mut random, ranks, timeout, only_deaths)).collect();
        let mut random = Random::new(seed, HEALING);
        faults.extend(random.once_in(8).then(|| Fault::healing(&mut random, ranks, timeout)));
        Self { delay_max, slowness_max, silence: Some(timeout), faults, ..Self::fair(seed) }
    }

    /// How long the kernel of `host` hears nothing from `other` before it gives up, if it ever does: as it asks now and then
    /// only, up to a third longer than it is told. In half of all networks that differs by host, in the others by connection.
    pub(super) fn patience(&self, host: usize, other: usize) -> Option<Duration> {
        let connection = if self.seed.is_multiple_of(2) { 0 } else { 1 + other as u64 };
        let drawn = [PATIENCE, host as u64, connection].into_iter().fold(self.seed, stir) % 1000;
        let times = if self.patient.has(host) { 4 } else { 1 };
        self.silence.map(|silence| times * silence + silence / 3000 * drawn as u32)
    }

    /// Whether the kernel of `host` says so to the other end when it gives up.
    pub(super) fn is_outspoken(&self, host: usize) -> bool {
        stir(stir(self.seed, OUTSPOKEN), host as u64).is_multiple_of(2)
    }

    /// When the cuts begin and end that keep a question or its answer from passing between two ranks.
    pub fn cuts_between(&self, one: usize, other: usize) -> impl Iterator<Item = (Duration, Duration)> {
        let between = move |fault: &Fault| match *fault {
            Fault::Cut { from, to, at, lasts, .. } => {
                let hit = from.has(one) && to.has(other) || from.has(other) && to.has(one);
                hit.then_some((at, lasts.map_or(Duration::MAX, |lasts| at.saturating_add(lasts))))
            }
            _ => None,
        };
        self.faults.iter().filter_map(between)
    }

    /// Since when nothing that one of these asks the other is answered; none if it is. Cuts may follow each other without a gap.
    pub(super) fn unanswered_since(&self, one: usize, other: usize, now: Duration) -> Option<Duration> {
        let mut since = now;
        while let Some((at, _)) = self.cuts_between(one, other).find(|&(at, end)| at < since && since <= end)
        {
            since = at;
        }
        (since < now).then_some(since)
    }

    /// How many times slower than usual the way between two ranks is: all scales are equally likely.
    pub(super) fn slowness(&self, from: usize, to: usize) -> u64 {
        let scales = u64::from(self.slowness_max.max(1).ilog2()) + 1;
        let drawn = [SLOWNESS, from as u64, to as u64].into_iter().fold(self.seed, stir) % scales;
        1 << drawn
    }

    /// Until when nothing passes from one rank to another at this time; none if something does.
    pub(super) fn cut_until(&self, from: usize, to: usize, now: Duration) -> Option<Duration> {
        let ends = |fault: &Fault| match fault {
            Fault::Cut { from: one, to: other, both_ways, at, lasts } => {
                let hit = one.has(from) && other.has(to) || *both_ways && one.has(to) && other.has(from);
                let end = lasts.map_or(Duration::MAX, |lasts| at.saturating_add(lasts));
                (hit && (*at..end).contains(&now)).then_some(end)
            }
            _ => None,
        };
        self.faults.iter().filter_map(ends).max()
    }

    /// Until when a rank that is stalled at this time stays so.
    pub(super) fn stalled_until(&self, stalled: usize, now: Duration) -> Option<Duration> {
        let ends = |fault: &Fault| match *fault {
            Fault::Stall { rank, from, lasts } if rank == stalled => {
                let end = from.saturating_add(lasts);
                (from..end).contains(&now).then_some(end)
            }
            _ => None,
        };
        self.faults.iter().filter_map(ends).max()
    }
}

impl Fault {
    fn drawn(random: &mut Random, ranks: usize, timeout: Duration, only_deaths: bool) -> Self {
        let rank = random.below(ranks);
        // Most runs are over after a few milliseconds; what comes later is recovery.
        let spans: [usize; 4] = [300, 3_000, 30_000, 2_000_000];
        let span = random.pick(&spans);
        let at = Duration::from_micros(random.below(span) as u64);
        let part = |random: &mut Random| timeout * random.pick(&[1, 2, 4, 9, 14, 40]) / 10;
        match random.below(if only_deaths { 4 } else { 8 }) {
            0 | 1 => Self::Death { rank, at: Moment::Deliveries(random.below(500) as u64), told: true },
            2 | 3 => Self::Death { rank, at: Moment::Time(at), told: true },
            4 => Self::Death { rank, at: Moment::Time(at), told: false },
            5 => Self::Stall { rank, from: at, lasts: part(random) },
            way => {
                let from = Ranks(1 << rank | random.number() & random.number());
                let lasts = random.once_in(2).then(|| part(random));
                Self::Cut { from, to: Ranks(!from.0), both_ways: way == 6, at, lasts }
            }
        }
    }

    /// A cut that ends when some kernels have given their connections up, and others not.
    fn healing(random: &mut Random, ranks: usize, timeout: Duration) -> Self {
        let from = Ranks(1 << random.below(ranks) | random.number() & random.number());
        let at = Duration::from_micros(random.below(3_000) as u64);
        let lasts = Some(timeout * (100 + random.below(35) as u32) / 100);
        Self::Cut { from, to: Ranks(!from.0), both_ways: random.once_in(2), at, lasts }
    }
}

/// Longer than anything that is simulated takes.
const ENDS: Duration = Duration::from_secs(600);
/// Keeps the numbers drawn here apart from those drawn from the same seed elsewhere.
const STREAM: u64 = 0x0077_6561_7468_6572;
const HEALING: u64 = 0x6865_616c;
const SLOWNESS: u64 = 0x736c_6f77;
const PATIENCE: u64 = 0x7061_7469;
const OUTSPOKEN: u64 = 0x7361_7973;
