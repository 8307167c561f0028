//! What a seed stands for: ranks, settings, weather, and what the ranks do.

use crate::perf::test::{Kind, Test};
use std::time::Duration;
use unisono::schedule::{Algorithm, Reach, Spec};
use unisono::{Config, DType, Op};
use unisono_transports::sim::{Fault, Random, Weather};

/// One simulated run.
#[derive(Clone)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) config: Config,
    pub(super) weather: Weather,
    pub(super) steps: Vec<Step>,
}

/// One thing that all ranks do together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) manner: Manner,
    pub(super) dtype: DType,
    pub(super) op: Op,
    /// Any number; the root is what remains of it.
    pub(super) root: usize,
    pub(super) count: usize,
    /// Any number that says which of the algorithms that fit.
    pub(super) algorithm: usize,
    /// The host whose rank gives one element more than the others.
    pub(super) odd: Option<usize>,
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    OutOfPlace,
    InPlace,
    /// Two of them are started, and then waited for.
    Started,
    /// In two groups of every second rank.
    Split,
    /// The rank of a host ends the communicator instead.
    Aborted {
        by: usize,
    },
}

impl Scenario {
    /// What `seed` stands for: nothing else decides, no setting of this machine either.
    pub(super) fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed, STREAM);
        let ranks = 2 + random.below(5);
        let config = Config {
            timeout: TIMEOUT,
            join_timeout: JOIN_TIMEOUT,
            channels: 1 + random.below(2),
            slots: 2 + random.below(3),
            slot_bytes: random.pick(&[1024, 4096]),
            host: "simulated".to_owned(),
            ..Config::default()
        };
        let count = 2 + random.below(6);
        let steps = (0..count).map(|_| Step::drawn(&mut random, ranks)).collect();
        Self { seed, ranks, config, weather: Weather::drawn(seed, ranks, TIMEOUT), steps }
    }

    /// Whether nothing is drawn but deaths of which the others are told: then all is to end soon, and well.
    pub(super) fn is_told(&self) -> bool {
        self.weather.faults.iter().all(|fault| matches!(fault, Fault::Death { told: true, .. }))
    }
}

impl Step {
    fn drawn(random: &mut Random, ranks: usize) -> Self {
        let kind = random.pick(&KINDS);
        let manner = match random.below(12) {
            0..4 if kind.has_in_place() => Manner::InPlace,
            4 => Manner::Started,
            5 => Manner::Split,
            6 if random.once_in(8) => Manner::Aborted { by: random.below(ranks) },
            _ => Manner::OutOfPlace,
        };
        let odd = random.once_in(20).then(|| random.below(ranks));
        Self {
            kind,
            manner,
            dtype: random.pick(&DTYPES),
            op: random.pick(&[Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg, Op::PreMulSum]),
            root: random.below(60),
            count: random.pick(&[1, 2, 7, 60, 300, 1500]),
            algorithm: random.below(1000),
            odd: odd
                .filter(|_| kind != Kind::Barrier && matches!(manner, Manner::OutOfPlace | Manner::InPlace)),
        }
    }

    /// What it is among so many ranks.
    pub(super) fn test(&self, ranks: usize) -> Test {
        Test::new(self.kind, self.op, if self.kind.has_root() { self.root % ranks } else { 0 })
    }

    /// The algorithm to insist on among so many ranks; none leaves the choice to the library.
    pub(super) fn algorithm(&self, ranks: usize) -> Option<&'static Algorithm> {
        let collective = self.kind.collective()?;
        let spec = Spec { ranks, root: self.test(ranks).root, aggregation: 1 };
        let fits = |row: &&Algorithm| {
            row.collective == collective && row.reach == Reach::Messages && (row.fits)(&spec)
        };
        let rows: Vec<&'static Algorithm> = Algorithm::ALL.iter().filter(fits).collect();
        rows.get(self.algorithm % (rows.len() + 1)).copied()
    }
}

const KINDS: [Kind; 10] = [
    Kind::AllReduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::Gather,
    Kind::Scatter,
    Kind::AllToAll,
    Kind::SendRecv,
    Kind::Barrier,
];
/// One of each size, and those that are reduced in a way of their own.
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::U8, DType::BF16, DType::I64];
/// In virtual time these cost nothing but the looks around that fall into them.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Keeps the numbers drawn here apart from those drawn from the same seed elsewhere.
const STREAM: u64 = 0x7363_656e_6172_696f;
