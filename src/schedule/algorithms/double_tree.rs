//! Two binary trees at the same time, each with half of the data.
//!
//! A rank that is an inner node of one tree is a leaf of the other. All links therefore carry equal
//! loads, and the depth is logarithmic. The algorithm is used for large shares of many ranks.
//!
//! Ranks other than the root have positions 1 to `ranks - 1`, counted from the root. In the first
//! tree a position's parent has the lowest set bit cleared and the next bit set. If there is no
//! such position, only the lowest set bit is cleared. Odd positions are leaves. In the second tree,
//! odd and even positions are exchanged. If mirroring the positions does so, they are mirrored, and
//! otherwise they are shifted by one. The root is above both trees.
//!
//! Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Computing 35(12), 2009.

use super::{any_group, single_rank};
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output, scratch,
};

const SOURCE: &str = "Sanders, Speck, Träff: Two-tree algorithms, Parallel Computing 2009";

/// All-reduce: a reduction to the root of both trees, then a broadcast from it.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "tree",
    collective: Collective::AllReduce,
    summary: "half the data to the root and back in each of two trees: logarithmic depth at full bandwidth",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|_| 2,
    build: &all_reduce,
    complexity: Some(&|spec| Complexity {
        steps: 2 * critical_path(spec),
        chunks: 4 * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Broadcast from the root of both trees.
pub const BROADCAST: Algorithm = Algorithm {
    name: "tree",
    collective: Collective::Broadcast,
    summary: "half the data from the root in each of two trees: logarithmic depth at full bandwidth",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|_| 2,
    build: &broadcast,
    complexity: Some(&|spec| Complexity {
        steps: critical_path(spec),
        chunks: 2 * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Reduce to the root of both trees.
pub const REDUCE: Algorithm = Algorithm {
    name: "tree",
    collective: Collective::Reduce,
    summary: "half the data to the root in each of two trees: logarithmic depth at full bandwidth",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|_| 2,
    build: &reduce,
    complexity: Some(&|spec| Complexity {
        steps: critical_path(spec),
        chunks: 2 * (spec.size() - 1),
        scratch_chunks: u64::from(spec.ranks > 2),
    }),
};

/// A rank's parent and children in one of the trees.
struct Node {
    parent: Option<Rank>,
    /// The children. The child with the deeper subtree comes first.
    children: Vec<Rank>,
}

impl Node {
    fn new(spec: &GroupSpec, rank: Rank, tree: usize) -> Self {
        let seat = tree_index(spec.position(rank), tree, spec.ranks);
        let rank_at = |seat| spec.rank_at(tree_position(seat, tree, spec.ranks));
        let parent = (seat > 0).then(|| rank_at(parent(seat, spec.ranks)));
        Self { parent, children: children(seat, spec.ranks).map(rank_at).collect() }
    }

    /// Sums the subtree and passes the sum to the parent. If there is anything to add, the sum is
    /// in `sum`.
    fn reduce_up(&self, builder: &mut ProgramBuilder, input_chunk: Chunk, sum: Chunk) {
        let mut held = input_chunk;
        // The shallower subtree is done first. Only the root finishes, and has one child.
        for &child in self.children.iter().rev() {
            builder.recv_reduce(child, [held], [sum], self.parent.is_none());
            held = sum;
        }
        if let Some(parent) = self.parent {
            builder.send(parent, [held]);
        }
    }

    /// Passes the data of the parent, or at the root the chunk `held`, to the children.
    fn broadcast_down(&self, builder: &mut ProgramBuilder, held: Chunk) {
        if let Some(parent) = self.parent {
            builder.recv(parent, [held]);
        }
        for &child in &self.children {
            builder.send(child, [held]);
        }
    }
}

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 2);
    }
    let mut builder = ProgramBuilder::new(rank);
    for tree in [0, 1] {
        let node = Node::new(spec, rank, tree);
        builder.begin_lane(tree);
        node.reduce_up(&mut builder, input(tree), output(tree));
        node.broadcast_down(&mut builder, output(tree));
    }
    builder.finish(0, 0)
}

fn broadcast(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for tree in [0, 1] {
        let node = Node::new(spec, rank, tree);
        builder.begin_lane(tree);
        if rank == spec.root {
            node.broadcast_down(&mut builder, input(tree));
            // The children wait for their messages, so the root's copy for itself comes last.
            builder.copy(input(tree), output(tree));
        } else {
            node.broadcast_down(&mut builder, output(tree));
        }
    }
    builder.finish(0, 0)
}

fn reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 2);
    }
    let mut builder = ProgramBuilder::new(rank);
    let mut inner = false;
    for tree in [0, 1] {
        let node = Node::new(spec, rank, tree);
        builder.begin_lane(tree);
        // Scratch is needed in the one tree only in which this rank is an inner node.
        let sum = if rank == spec.root { output(tree) } else { scratch(0) };
        node.reduce_up(&mut builder, input(tree), sum);
        inner |= rank != spec.root && !node.children.is_empty();
    }
    builder.finish(usize::from(inner), 0)
}

/// The node of the tree that the rank at `position` is.
fn tree_index(position: usize, tree: usize, ranks: usize) -> usize {
    match (position, tree) {
        (0, _) | (_, 0) => position,
        _ if ranks % 2 == 1 => ranks - position,
        (1, _) => ranks - 1,
        _ => position - 1,
    }
}

/// The position of the rank that is node `seat`: the inverse of [`seat`].
fn tree_position(seat: usize, tree: usize, ranks: usize) -> usize {
    match (seat, tree) {
        (0, _) | (_, 0) => seat,
        _ if ranks % 2 == 1 => ranks - seat,
        _ if seat == ranks - 1 => 1,
        _ => seat + 1,
    }
}

fn parent(seat: usize, ranks: usize) -> usize {
    let lowest = lowest_bit(seat);
    let usual = (seat ^ lowest) | (lowest << 1);
    if usual < ranks { usual } else { seat ^ lowest }
}

/// The child with the lower node number, then the child with the higher one.
fn children(seat: usize, ranks: usize) -> impl Iterator<Item = usize> {
    let half = if seat == 0 { ranks.next_power_of_two() } else { lowest_bit(seat) } / 2;
    let lower_child = (seat > 0 && half > 0).then(|| seat - half);
    let steps = std::iter::successors(Some(half), |step| Some(step / 2)).take_while(|&step| step > 0);
    let higher_child = steps.map(move |step| seat + step).find(|&higher_child| higher_child < ranks);
    lower_child.into_iter().chain(higher_child)
}

const fn lowest_bit(seat: usize) -> usize {
    seat & seat.wrapping_neg()
}

/// Rounds from the root to the last leaf.
fn critical_path(spec: &GroupSpec) -> u64 {
    if spec.ranks == 1 { 0 } else { 1 + rounds_below_root(spec.ranks - 1) }
}

/// Rounds from the top of a tree of `nodes` to its last leaf. Below the top, which sits at the
/// largest power of two, is a full tree that is served first; above it, a tree of the rest.
fn rounds_below_root(nodes: usize) -> u64 {
    let levels = nodes.ilog2();
    let full = if levels == 0 { 0 } else { 2 * u64::from(levels) - 1 };
    match nodes - (1 << levels) {
        0 => full,
        rest => full.max(2 + rounds_below_root(rest)),
    }
}
