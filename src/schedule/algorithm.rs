//! The table of algorithms.

use super::algorithms::{
    barrier, bidirectional_ring, binomial, bruck, double_tree, gather_scatter, inplace_ring, linear,
    pairwise, pat, rank_ordered, recursive_doubling, recursive_halving, ring, scan, window_direct,
    window_reduce, zero_copy,
};
use super::{Collective, GroupSpec, Program, Rank, Schedule};
use std::borrow::Cow;

/// The costs of one pass of an algorithm's program, which the checker verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complexity {
    /// Steps of the longest chain of messages or signals that must follow one another.
    pub steps: u64,
    /// Number of chunks that all ranks together send over links, or copy from or into a peer's
    /// window. A chunk that is added to a chunk in a peer's window counts once.
    pub chunks: u64,
    /// The largest number of scratch chunks of a rank.
    pub scratch_chunks: u64,
}

/// The memory of its peers that a rank accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum PeerAccess {
    /// No memory of peers, because all data moves in messages.
    #[default]
    TwoSided,
    /// The windows of peers, which requires that all ranks share memory.
    Window,
    /// The user buffers of peers, which requires that all ranks give symmetric memory.
    ZeroCopy,
}

/// The order in which an algorithm combines the operands of more than two ranks.
///
/// Selection depends only on this property, and never on the name of an algorithm. For two ranks,
/// the property has no effect, because two operands have only one order and one rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CombineOrder {
    /// Operands are combined in any order. Algorithms that combine nothing also have this value.
    Unspecified,
    /// Operands are combined in rank order.
    RankOrder,
    /// All operands are combined in rank order by one step, so that a sum of narrow floats is
    /// rounded only once.
    SinglePass,
}

/// One way to carry out one collective. It has a name, and functions that build the programs of the
/// ranks of a group.
///
/// The table [`Algorithm::ALL`] has the algorithms of the library. [`Algorithm::new`] makes your
/// own algorithm.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Algorithm {
    /// Short name, unique among the algorithms of its collective.
    pub name: &'static str,
    /// The collective that the algorithm computes.
    pub collective: Collective,
    /// One line that says the idea of the algorithm and its best use.
    pub summary: &'static str,
    /// The publication that describes the algorithm.
    pub citation: &'static str,
    /// The memory of its peers that a rank accesses.
    pub peer_access: PeerAccess,
    /// The order in which operands are combined.
    pub combine_order: CombineOrder,
    /// True if the algorithm uses [`GroupSpec::aggregation`].
    pub aggregates: bool,
    /// Returns true if the algorithm can run with a spec.
    pub supports: OfGroup<bool>,
    /// Returns the number of chunks into which a share is cut.
    pub chunks_per_share: OfGroup<usize>,
    /// Builds the program of one rank.
    pub build: &'static (dyn Fn(&GroupSpec, Rank) -> Program + Send + Sync),
    /// The costs that the algorithm states, which the checker verifies. Every algorithm of the
    /// library states them.
    pub complexity: Option<OfGroup<Complexity>>,
}

/// A function of the group.
pub type OfGroup<R> = &'static (dyn Fn(&GroupSpec) -> R + Send + Sync);

impl Algorithm {
    /// Every algorithm of the library.
    pub const ALL: &'static [Algorithm] = &TABLE;

    /// Describes an algorithm of your own: `build` returns the program of one rank of a group.
    ///
    /// By default, the algorithm runs with any number of ranks, accesses no memory of peers, has
    /// one chunk per share and states no costs. The methods that begin with `with_` change these
    /// properties. [`register_algorithm`](crate::register_algorithm) makes its name known to
    /// settings, tuning files and commands.
    /// [`Communicator::set_custom_algorithm`](crate::Communicator::set_custom_algorithm) uses the
    /// algorithm in one communicator. Both functions prove it first. Values that `build` captures,
    /// for example a radix, are kept for the rest of the process.
    ///
    /// ```
    /// use unisono::schedule::check::{Options, check};
    /// use unisono::schedule::{Algorithm, Collective, GroupSpec, ProgramBuilder, input, output};
    ///
    /// // The root sends its buffer to one rank after the other.
    /// let star = Algorithm::new("star", Collective::Broadcast, |spec, rank| {
    ///     let mut program = ProgramBuilder::new(rank);
    ///     if rank == spec.root {
    ///         let peers = (0..spec.ranks).filter(|&peer| peer != rank);
    ///         peers.for_each(|peer| _ = program.send(peer, [input(0)]));
    ///         program.copy(input(0), output(0));
    ///     } else {
    ///         program.recv(spec.root, [output(0)]);
    ///     }
    ///     program.finish(0, 0)
    /// });
    /// let report = check(&star, &GroupSpec::new(5).with_root(2), &Options::default())?;
    /// assert_eq!((report.steps, report.chunks), (4, 4));
    /// # Ok::<(), unisono::schedule::check::Violation>(())
    /// ```
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        collective: Collective,
        build: impl Fn(&GroupSpec, Rank) -> Program + Send + Sync + 'static,
    ) -> Self {
        let name = match name.into() {
            Cow::Borrowed(name) => name,
            Cow::Owned(name) => name.leak(),
        };
        Self {
            name,
            collective,
            summary: "an algorithm of the caller",
            citation: "none",
            peer_access: PeerAccess::TwoSided,
            combine_order: CombineOrder::Unspecified,
            aggregates: false,
            supports: &|_| true,
            chunks_per_share: &|_| 1,
            build: kept(build),
            complexity: None,
        }
    }

    /// Sets the line that says what the algorithm is good for.
    pub fn with_summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }

    /// Sets the publication that describes the algorithm.
    pub fn with_citation(self, citation: &'static str) -> Self {
        Self { citation, ..self }
    }

    /// Sets the memory of its peers that a rank accesses.
    pub fn with_peer_access(self, peer_access: PeerAccess) -> Self {
        Self { peer_access, ..self }
    }

    /// Sets the order in which operands are combined. This is not proved. If the programs do not
    /// keep the order, results can differ from those that
    /// [`Config::reduction_order`](crate::Config::reduction_order) promises.
    pub fn with_combine_order(self, combine_order: CombineOrder) -> Self {
        Self { combine_order, ..self }
    }

    /// Sets the groups with which the algorithm can run, for example powers of two.
    pub fn with_supports(self, supports: impl Fn(&GroupSpec) -> bool + Send + Sync + 'static) -> Self {
        Self { supports: kept(supports), ..self }
    }

    /// Sets the number of chunks into which a share is cut.
    pub fn with_chunks_per_share(self, chunks: impl Fn(&GroupSpec) -> usize + Send + Sync + 'static) -> Self {
        Self { chunks_per_share: kept(chunks), ..self }
    }

    /// States the costs. The checker then compares them with the costs of the programs.
    pub fn with_complexity(
        self,
        complexity: impl Fn(&GroupSpec) -> Complexity + Send + Sync + 'static,
    ) -> Self {
        Self { complexity: Some(kept(complexity)), ..self }
    }

    /// Keeps the algorithm for the rest of the process, because communicators refer to it.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// Returns the algorithm that runs this schedule. It supports only the group for which the
    /// schedule was built.
    ///
    /// ```
    /// use unisono::schedule::{Algorithm, Collective, GroupSpec, find};
    ///
    /// let ring = find(Collective::AllReduce, "ring").unwrap().schedule(&GroupSpec::new(4));
    /// let same = Algorithm::of_schedule("ring", ring.clone());
    /// assert!((same.supports)(&GroupSpec::new(4)) && !(same.supports)(&GroupSpec::new(5)));
    /// assert_eq!(same.schedule(&GroupSpec::new(4)), ring);
    /// ```
    pub fn of_schedule(name: impl Into<Cow<'static, str>>, schedule: Schedule) -> Self {
        let Schedule { algorithm: _, collective, spec, chunks_per_share, peer_access, programs } = schedule;
        let group = move |other: &GroupSpec| (other.ranks, other.root) == (spec.ranks, spec.root);
        Self::new(name, collective, move |_, rank| programs.get(rank).cloned().unwrap_or_default())
            .with_peer_access(peer_access)
            .with_chunks_per_share(move |_| chunks_per_share)
            .with_supports(group)
            .with_summary("a schedule that was given")
    }

    /// Returns true if the algorithm combines operands of `ranks` ranks in rank order.
    pub fn keeps_rank_order(&self, ranks: usize) -> bool {
        self.guarantees(CombineOrder::RankOrder, ranks)
    }

    /// Returns true if the algorithm rounds each sum of `ranks` ranks only once.
    pub fn rounds_once(&self, ranks: usize) -> bool {
        self.guarantees(CombineOrder::SinglePass, ranks)
    }

    fn guarantees(&self, order: CombineOrder, ranks: usize) -> bool {
        !self.collective.reduces() || ranks <= 2 || self.combine_order >= order
    }

    /// Returns the programs of all ranks.
    pub fn schedule(&self, spec: &GroupSpec) -> Schedule {
        Schedule {
            algorithm: self.name.to_owned(),
            collective: self.collective,
            spec: *spec,
            chunks_per_share: (self.chunks_per_share)(spec),
            peer_access: self.peer_access,
            programs: (0..spec.ranks).map(|rank| (self.build)(spec, rank)).collect(),
        }
    }
}

/// The table. It is a `static`, so each row has one address, which distinguishes it from its
/// copies.
pub(super) static TABLE: [Algorithm; 59] = [
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

/// Keeps a value for the rest of the process. A function without captured values takes no memory.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.collective, self.name)
    }
}
