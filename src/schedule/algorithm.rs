//! The table of algorithms.

use super::algorithms::{
    barrier, bidirectional_ring, binomial, bruck, double_tree, gather_scatter, inplace_ring, linear,
    pairwise, pat, rank_ordered, recursive_doubling, recursive_halving, ring, scan, window_direct,
    window_reduce, zero_copy,
};
use super::{Collective, GroupSpec, Program, Rank, Schedule};

/// The costs of one pass of an algorithm's program, which the checker verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complexity {
    /// Steps of the longest chain: messages (or signals) that must follow one another.
    pub steps: u64,
    /// Chunks sent over links, or copied from or into a peer's window (once, if something is added
    /// to one there), over all ranks.
    pub chunks: u64,
    /// Most scratch chunks that any rank holds.
    pub scratch_chunks: u64,
}

/// The memory of its peers that a rank accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerAccess {
    /// None: all goes in messages.
    TwoSided,
    /// Their windows, where all ranks share memory.
    Window,
    /// The user buffers of peers, if all ranks called with symmetric memory.
    ZeroCopy,
}

/// The order in which an algorithm combines the operands of more than two ranks.
///
/// Selection depends on this property alone, never on the name of an algorithm. Two operands have
/// only one order and one rounding, so the property says nothing about a group of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CombineOrder {
    /// Operands are combined in any order. Also the value of algorithms that combine nothing.
    Unspecified,
    /// Operands are combined in rank order.
    RankOrder,
    /// All operands are combined in rank order by one step, which rounds a sum of narrow floats
    /// once.
    SinglePass,
}

/// One way to do one collective: a row of plain functions.
pub struct Algorithm {
    /// Short name, unique among the algorithms of its collective.
    pub name: &'static str,
    /// The collective that the algorithm computes.
    pub collective: Collective,
    /// One line: the idea, and what it is good for.
    pub summary: &'static str,
    /// The publication that describes the algorithm.
    pub citation: &'static str,
    /// The memory of its peers that a rank accesses.
    pub peer_access: PeerAccess,
    /// The order in which operands are combined.
    pub combine_order: CombineOrder,
    /// True if the algorithm uses [`GroupSpec::aggregation`].
    pub aggregates: bool,
    /// Returns whether the algorithm can run with a spec.
    pub supports: fn(&GroupSpec) -> bool,
    /// Chunks that a share is cut into.
    pub chunks_per_share: fn(&GroupSpec) -> usize,
    /// The program of one rank.
    pub build: fn(&GroupSpec, Rank) -> Program,
    /// The counts the checker holds it to.
    pub complexity: fn(&GroupSpec) -> Complexity,
}

impl Algorithm {
    /// Every algorithm there is.
    pub const ALL: &'static [Algorithm] = &[
        ring::ALL_REDUCE,
        bidirectional_ring::ALL_REDUCE,
        double_tree::ALL_REDUCE,
        pat::ALL_REDUCE,
        recursive_doubling::ALL_REDUCE,
        recursive_halving::ALL_REDUCE,
        window_reduce::ONE_SHOT,
        window_reduce::TWO_SHOT,
        inplace_ring::ALL_REDUCE,
        rank_ordered::ALL_REDUCE,
        rank_ordered::NAIVE,
        ring::ALL_GATHER,
        bidirectional_ring::ALL_GATHER,
        pat::ALL_GATHER,
        recursive_doubling::ALL_GATHER,
        bruck::ALL_GATHER,
        window_direct::ALL_GATHER,
        ring::REDUCE_SCATTER,
        bidirectional_ring::REDUCE_SCATTER,
        pat::REDUCE_SCATTER,
        recursive_halving::REDUCE_SCATTER,
        window_reduce::REDUCE_SCATTER,
        inplace_ring::REDUCE_SCATTER,
        rank_ordered::REDUCE_SCATTER,
        ring::BROADCAST,
        double_tree::BROADCAST,
        binomial::BROADCAST,
        linear::BROADCAST,
        window_direct::BROADCAST,
        ring::REDUCE,
        double_tree::REDUCE,
        binomial::REDUCE,
        window_reduce::REDUCE,
        rank_ordered::REDUCE,
        gather_scatter::GATHER,
        gather_scatter::GATHER_LINEAR,
        window_direct::GATHER,
        gather_scatter::SCATTER,
        gather_scatter::SCATTER_LINEAR,
        window_direct::SCATTER,
        pairwise::ALL_TO_ALL,
        pairwise::ALL_TO_ALL_EXCHANGE,
        pairwise::ALL_TO_ALL_WINDOWED,
        bruck::ALL_TO_ALL,
        window_direct::ALL_TO_ALL,
        barrier::DISSEMINATION,
        window_direct::BARRIER,
        scan::DOUBLING,
        scan::CHAIN,
        scan::WINDOWED,
        scan::EXCLUSIVE_DOUBLING,
        scan::EXCLUSIVE_CHAIN,
        scan::EXCLUSIVE_WINDOWED,
        zero_copy::ALL_REDUCE,
        zero_copy::ALL_GATHER,
        zero_copy::REDUCE_SCATTER,
        zero_copy::BROADCAST,
        zero_copy::BROADCAST_PUSH,
        zero_copy::ALL_REDUCE_SCALED,
    ];

    /// Returns whether a group of `ranks` ranks gets results combined in rank order.
    pub fn keeps_rank_order(&self, ranks: usize) -> bool {
        self.guarantees(CombineOrder::RankOrder, ranks)
    }

    /// Returns whether a group of `ranks` ranks gets sums that are rounded once.
    pub fn rounds_once(&self, ranks: usize) -> bool {
        self.guarantees(CombineOrder::SinglePass, ranks)
    }

    fn guarantees(&self, order: CombineOrder, ranks: usize) -> bool {
        !self.collective.reduces() || ranks <= 2 || self.combine_order >= order
    }

    /// The programs of all ranks.
    pub fn schedule(&self, spec: &GroupSpec) -> Schedule {
        Schedule {
            collective: self.collective,
            spec: *spec,
            chunks_per_share: (self.chunks_per_share)(spec),
            peer_access: self.peer_access,
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
