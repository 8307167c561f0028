//! The scenario of a seed: ranks, settings, faults, and the steps of the ranks.

use crate::perf::op_case::{OpCase, OpKind};
use std::time::Duration;
use unisono::schedule::{Algorithm, GroupSpec, PeerAccess};
use unisono::{Config, DType, ReduceKind};
use unisono_transports::rng::Rng;
use unisono_transports::sim::{Fault, FaultPlan};

/// Input of one simulated run.
#[derive(Clone)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) ranks: usize,
    pub(super) config: Config,
    pub(super) fault_plan: FaultPlan,
    pub(super) steps: Vec<Step>,
}

/// One step of all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) kind: OpKind,
    pub(super) mode: CallMode,
    pub(super) dtype: DType,
    pub(super) op: ReduceKind,
    /// Any number; the root is what remains of it.
    pub(super) root: usize,
    pub(super) count: usize,
    /// Any number that says which of the algorithms that fit.
    pub(super) algorithm: usize,
    /// The algorithm that the user wants to see, in place of that number.
    pub(super) wanted: Option<&'static Algorithm>,
    /// The host whose rank gives one element more than the others.
    pub(super) mismatched_host: Option<usize>,
}

/// Form of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallMode {
    OutOfPlace,
    InPlace,
    /// Two of them are started, and then waited for.
    Async,
    /// The step runs in two subgroups of every second rank.
    Split,
    /// The rank of a host ends the communicator instead.
    Abort {
        by: usize,
    },
}

impl Scenario {
    /// Draws the scenario of `seed`. Nothing else has an influence, no setting of this machine
    /// either.
    pub(super) fn random(seed: u64) -> Self {
        let mut random = Rng::new(seed, SCENARIO_STREAM);
        let ranks = 2 + random.below(5);
        let config = Config::default()
            .with_timeout(TIMEOUT)
            .with_join_timeout(JOIN_TIMEOUT)
            .with_channels(1 + random.below(2))
            .with_fifo_depth(2 + random.below(3))
            .with_fifo_slot_bytes(random.choose(&[1024, 4096]))
            .with_host("simulated".to_owned());
        let count = 2 + random.below(6);
        let steps = (0..count).map(|_| Step::random(&mut random, ranks)).collect();
        Self { seed, ranks, config, fault_plan: FaultPlan::random(seed, ranks, TIMEOUT), steps }
    }

    /// Makes every step an operation with this algorithm, on as many ranks as it can run with.
    pub(super) fn with_algorithm(mut self, algorithm: Option<&'static Algorithm>) -> Self {
        let wanted = algorithm.and_then(|wanted| Some((wanted, OpKind::of(wanted.collective)?)));
        for step in self.steps.iter_mut() {
            let Some((algorithm, kind)) = wanted else { break };
            (step.kind, step.wanted) = (kind, Some(algorithm));
            // A barrier has no elements, so no rank can give a different number of them.
            step.mismatched_host = step.mismatched_host.filter(|_| kind != OpKind::Barrier);
            if step.mode == CallMode::InPlace && !kind.has_in_place() {
                step.mode = CallMode::OutOfPlace;
            }
        }
        self
    }

    /// Returns whether the only faults are deaths that the others are told of; then every call must
    /// end soon and well.
    pub(super) fn has_only_announced_deaths(&self) -> bool {
        self.fault_plan.faults.iter().all(|fault| matches!(fault, Fault::Death { announced: true, .. }))
    }
}

impl Step {
    fn random(random: &mut Rng, ranks: usize) -> Self {
        let kind = random.choose(&OP_KINDS);
        let mode = match random.below(12) {
            0..4 if kind.has_in_place() => CallMode::InPlace,
            4 => CallMode::Async,
            5 => CallMode::Split,
            6 if random.one_in(8) => CallMode::Abort { by: random.below(ranks) },
            _ => CallMode::OutOfPlace,
        };
        let odd = random.one_in(20).then(|| random.below(ranks));
        Self {
            kind,
            mode,
            dtype: random.choose(&DTYPES),
            op: random.choose(&[
                ReduceKind::Sum,
                ReduceKind::Prod,
                ReduceKind::Min,
                ReduceKind::Max,
                ReduceKind::Avg,
                ReduceKind::PreMulSum,
            ]),
            // Every number of ranks from 2 to 6 divides 60, so each rank is equally often the root.
            root: random.below(60),
            count: random.choose(&[1, 2, 7, 60, 300, 1500]),
            algorithm: random.below(1000),
            wanted: None,
            mismatched_host: odd.filter(|_| {
                kind != OpKind::Barrier && matches!(mode, CallMode::OutOfPlace | CallMode::InPlace)
            }),
        }
    }

    /// Returns the operation of this step for so many ranks.
    pub(super) fn op_case(&self, ranks: usize) -> OpCase {
        OpCase::new(self.kind, self.op, if self.kind.has_root() { self.root % ranks } else { 0 })
    }

    /// The algorithm to insist on among so many ranks; none leaves the choice to the library.
    pub(super) fn algorithm(&self, ranks: usize) -> Option<&'static Algorithm> {
        let collective = self.kind.collective()?;
        let spec = GroupSpec::new(ranks).with_root(self.op_case(ranks).root);
        let fits = |row: &&Algorithm| {
            row.collective == collective && row.peer_access == PeerAccess::TwoSided && (row.supports)(&spec)
        };
        if let Some(wanted) = self.wanted {
            return Some(wanted).filter(fits);
        }
        let rows: Vec<&'static Algorithm> = Algorithm::ALL.iter().filter(fits).collect();
        // One number more than there are rows stands for the choice of the library.
        rows.get(self.algorithm % (rows.len() + 1)).copied()
    }
}

const OP_KINDS: [OpKind; 10] = [
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::ReduceScatter,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
    OpKind::SendRecv,
    OpKind::Barrier,
];
/// One type of each size, and the types with reductions of their own.
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::U8, DType::BF16, DType::I64];
/// Timeouts in virtual time; they cost only the polls that fall into them.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Keeps the numbers drawn here apart from those drawn from the same seed elsewhere.
const SCENARIO_STREAM: u64 = 0x7363_656e_6172_696f;
