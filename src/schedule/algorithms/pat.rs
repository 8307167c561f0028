//! PAT, which stands for parallel aggregated trees.
//!
//! Chunks travel along binomial trees. The far hops come first, when messages carry few chunks, and
//! the near hops come last. The aggregation `A` is the number of chunks in one message, which is
//! the number of trees that advance together. With the largest `A`, the number of messages is
//! logarithmic. With `A = 1` every message carries one chunk. Every `A` moves the fewest bytes
//! possible. Scratch memory depends only on `A` and the logarithm of the number of ranks.
//!
//! All ranks do the same in relative numbers, where offset `s` is the rank `s` above. In the
//! all-gather a chunk goes along an edge from offset `s` to its child `s + distance`, that is, from
//! each rank to the rank `distance` below. The reduce-scatter runs the same list in reverse order,
//! with every edge reversed. Its sums are therefore the same expression for every `A`.
//!
//! Source: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
//! arXiv 2506.20252, 2025.

use super::{any_group, chunk_list, one_chunk, one_per_rank, single_rank};
use crate::schedule::algorithms::partial_sums::PartialSums;
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output,
};

const SOURCE: &str = "Jeaugey: PAT, arXiv 2506.20252, 2025";

/// All-gather by parallel aggregated trees.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "pat",
    collective: Collective::AllGather,
    summary: "far hops first, near hops packed: logarithmic for small data, fewest bytes for any",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: true,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_gather,
    complexity: Some(&|spec| Complexity {
        steps: messages_per_rank(spec),
        chunks: spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Reduce-scatter by parallel aggregated trees.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "pat",
    collective: Collective::ReduceScatter,
    summary: "near hops packed, far hops last: logarithmic for small data, fewest bytes for any",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: true,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| Complexity {
        steps: messages_per_rank(spec),
        chunks: spec.size() * (spec.size() - 1),
        scratch_chunks: max_scratch_chunks(spec),
    }),
};

/// All-reduce: reduce-scatter, then all-gather.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "pat",
    collective: Collective::AllReduce,
    summary: "reduce-scatter and all-gather by aggregated trees: logarithmic, and fewest bytes",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: true,
    supports: &any_group,
    chunks_per_share: &one_per_rank,
    build: &all_reduce,
    complexity: Some(&|spec| Complexity {
        steps: 2 * messages_per_rank(spec),
        chunks: 2 * spec.size() * (spec.size() - 1),
        scratch_chunks: max_scratch_chunks(spec),
    }),
};

/// One round, in which every rank sends one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// The distance of the message, in ranks.
    pub(super) distance: usize,
    /// The offsets of the parents of its edges.
    pub(super) parents: Vec<usize>,
}

/// The trees of one spec.
pub(super) struct AggregatedTrees {
    ranks: usize,
    /// Number of trees, which is also the largest number of chunks in a message. It is the
    /// aggregation, limited by the number of ranks.
    trees: usize,
    /// Nodes of each tree, with the number of ranks rounded up to a power of two.
    nodes: usize,
}

impl AggregatedTrees {
    pub(super) fn new(spec: &GroupSpec) -> Self {
        let full = spec.ranks.next_power_of_two();
        let trees = (1 << spec.aggregation.max(1).ilog2()).min((full / 2).max(1));
        Self { ranks: spec.ranks, trees, nodes: full / trees }
    }

    /// The messages of an all-gather, in order.
    pub(super) fn rounds(&self) -> Vec<Round> {
        let mut rounds = Vec::new();
        // From the first root to all roots, farthest first.
        let mut group = self.trees / 2;
        while group > 0 {
            let distance = group * self.nodes;
            rounds.push(self.round(distance, (0..).map(|tree| 2 * tree * distance)));
            group /= 2;
        }
        // Down all trees in lock-step.
        visit_tree(0, self.nodes, &mut |node| {
            let distance = 1 << node.trailing_zeros();
            let parents = (0..self.trees).map(|tree| tree * self.nodes + node - distance);
            rounds.push(self.round(distance, parents));
        });
        rounds.retain(|round| !round.parents.is_empty());
        rounds
    }

    /// Drops edges to ranks that do not exist. As a parent's offset is lower, no node is orphaned.
    fn round(&self, distance: usize, parents: impl Iterator<Item = usize>) -> Round {
        Round { distance, parents: parents.take_while(|parent| parent + distance < self.ranks).collect() }
    }
}

/// Visits a binomial tree from the top, the largest child first, without its root.
fn visit_tree(root: usize, nodes: usize, visit: &mut impl FnMut(usize)) {
    let mut step = nodes / 2;
    while step > 0 {
        visit(root + step);
        visit_tree(root + step, step, visit);
        step /= 2;
    }
}

/// Sends every rank's chunk, which is in its output, to all.
fn gather(builder: &mut ProgramBuilder, spec: &GroupSpec, rank: Rank, rounds: &[Round]) {
    for Round { distance, parents } in rounds {
        let (receiver, sender) = (spec.prev_by(rank, *distance), spec.next_by(rank, *distance));
        let chunks =
            |owner| chunk_list(parents.iter().copied(), |offset| output(spec.next_by(owner, offset)));
        builder.send(receiver, chunks(rank)).recv(sender, chunks(sender));
    }
}

/// Sums all chunks on the way to their owners. The chunk of this rank is summed in `result`.
/// Returns the number of scratch chunks.
fn scatter(
    builder: &mut ProgramBuilder,
    spec: &GroupSpec,
    rank: Rank,
    rounds: &[Round],
    result: Chunk,
) -> usize {
    let inputs = chunk_list(0..spec.ranks, |offset| input(spec.next_by(rank, offset)));
    let mut partials = PartialSums::new(inputs, 0, result);
    for (index, Round { distance, parents }) in rounds.iter().enumerate().rev() {
        let sent = chunk_list(parents.iter().copied(), |offset| partials.take(offset + distance));
        builder.send(spec.next_by(rank, *distance), sent);
        let (operands, sums): (Vec<_>, Vec<_>) = parents.iter().map(|&offset| partials.add(offset)).unzip();
        builder.recv_reduce(spec.prev_by(rank, *distance), operands, sums, index == 0);
    }
    partials.scratch_chunks()
}

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(0), output(rank));
    gather(&mut builder, spec, rank, &AggregatedTrees::new(spec).rounds());
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    let used = scatter(&mut builder, spec, rank, &AggregatedTrees::new(spec).rounds(), output(0));
    builder.finish(used, 0)
}

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (mut builder, rounds) = (ProgramBuilder::new(rank), AggregatedTrees::new(spec).rounds());
    let used = scatter(&mut builder, spec, rank, &rounds, output(rank));
    gather(&mut builder, spec, rank, &rounds);
    builder.finish(used, 0)
}

/// Returns the number of messages that each rank sends: the messages to the roots, and one for each
/// node of the first tree.
fn messages_per_rank(spec: &GroupSpec) -> u64 {
    let forest = AggregatedTrees::new(spec);
    u64::from(forest.trees.ilog2()) + forest.nodes.min(spec.ranks) as u64 - 1
}

/// Returns the largest number of partial sums that exist at once, except this rank's own:
/// `A·log2(nodes) - 1` for a power of two.
///
/// A leaf is received before any other child. Right after the leaves at `leaf` are received, each
/// of their ancestors has a sum in every tree in which the ancestor has a child.
fn max_scratch_chunks(spec: &GroupSpec) -> u64 {
    let forest = AggregatedTrees::new(spec);
    let trees_with_child = |node: usize| (spec.ranks - 1).saturating_sub(node).div_ceil(forest.nodes);
    let alive = |leaf: usize| {
        let ancestors =
            std::iter::successors(Some(leaf & (leaf - 1)), |&node| (node > 0).then(|| node & (node - 1)));
        ancestors.map(trees_with_child).sum::<usize>()
    };
    let most = (1..forest.nodes).step_by(2).map(alive).max().unwrap_or(0);
    most.saturating_sub(1) as u64
}
