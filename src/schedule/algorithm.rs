//! The table of algorithms.

use super::algorithms::{
    barrier, bidirectional, binomial, bruck, direct, direct_reduce, double_tree, doubling, gather_scatter,
    halving, linear, ordered, pairwise, pat, relay, ring, zero_copy,
};
use super::{Collective, Program, Rank, Schedule, Spec};

/// What an algorithm promises to move, for one pass of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Steps of the longest chain: messages (or signals) that must follow one another.
    pub steps: u64,
    /// Blocks sent over links, or copied from or into a peer's window (once, if something is added to one there), over
    /// all ranks.
    pub blocks: u64,
    /// Most scratch blocks that any rank holds.
    pub scratch: u64,
}

/// Which memory of its peers a rank reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// None: all goes in messages.
    Messages,
    /// Their windows, where all ranks share memory.
    Windows,
    /// The buffers of their callers, where all ranks called with memory that the library lent them.
    Buffers,
}

/// One way to do one collective: a row of plain functions.
pub struct Algorithm {
    /// Short name, unique among the algorithms of its collective.
    pub name: &'static str,
    /// What it computes.
    pub collective: Collective,
    /// One line: the idea, and what it is good for.
    pub about: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Which memory of its peers a rank reaches.
    pub reach: Reach,
    /// Whether [`Spec::aggregation`] means something to it.
    pub aggregates: bool,
    /// Whether it can run with this spec.
    pub fits: fn(&Spec) -> bool,
    /// Blocks that a share is cut into.
    pub parts: fn(&Spec) -> usize,
    /// The program of one rank.
    pub build: fn(&Spec, Rank) -> Program,
    /// The counts the checker holds it to.
    pub cost: fn(&Spec) -> Cost,
}

impl Algorithm {
    /// Every algorithm there is.
    pub const ALL: &'static [Algorithm] = &[
        ring::ALL_REDUCE,
        bidirectional::ALL_REDUCE,
        double_tree::ALL_REDUCE,
        pat::ALL_REDUCE,
        doubling::ALL_REDUCE,
        halving::ALL_REDUCE,
        direct_reduce::ONE_SHOT,
        direct_reduce::TWO_SHOT,
        relay::ALL_REDUCE,
        ordered::ALL_REDUCE,
        ordered::NAIVE,
        ring::ALL_GATHER,
        bidirectional::ALL_GATHER,
        pat::ALL_GATHER,
        doubling::ALL_GATHER,
        bruck::ALL_GATHER,
        direct::ALL_GATHER,
        ring::REDUCE_SCATTER,
        bidirectional::REDUCE_SCATTER,
        pat::REDUCE_SCATTER,
        halving::REDUCE_SCATTER,
        direct_reduce::REDUCE_SCATTER,
        relay::REDUCE_SCATTER,
        ordered::REDUCE_SCATTER,
        ring::BROADCAST,
        double_tree::BROADCAST,
        binomial::BROADCAST,
        linear::BROADCAST,
        direct::BROADCAST,
        ring::REDUCE,
        double_tree::REDUCE,
        binomial::REDUCE,
        direct_reduce::REDUCE,
        ordered::REDUCE,
        gather_scatter::GATHER,
        gather_scatter::GATHER_LINEAR,
        direct::GATHER,
        gather_scatter::SCATTER,
        gather_scatter::SCATTER_LINEAR,
        direct::SCATTER,
        pairwise::ALL_TO_ALL,
        pairwise::ALL_TO_ALL_EXCHANGE,
        pairwise::ALL_TO_ALL_BURSTS,
        bruck::ALL_TO_ALL,
        direct::ALL_TO_ALL,
        barrier::DISSEMINATION,
        direct::BARRIER,
        zero_copy::ALL_REDUCE,
        zero_copy::ALL_GATHER,
        zero_copy::REDUCE_SCATTER,
        zero_copy::BROADCAST,
        zero_copy::BROADCAST_PUSHED,
        zero_copy::ALL_REDUCE_SCALED,
    ];

    /// The programs of all ranks.
    pub fn schedule(&self, spec: &Spec) -> Schedule {
        Schedule {
            collective: self.collective,
            spec: *spec,
            parts: (self.parts)(spec),
            reach: self.reach,
            programs: (0..spec.ranks).map(|rank| (self.build)(spec, rank)).collect(),
        }
    }
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.collective, self.name)
    }
}

/// The algorithm called `name` for `collective`.
pub fn find(collective: Collective, name: &str) -> Option<&'static Algorithm> {
    Algorithm::ALL.iter().find(|row| row.collective == collective && row.name == name)
}
