//! Rings and chains, in which every rank communicates only with its two neighbors.
//!
//! An all-reduce takes `2 (n - 1)` rounds and sends `2 (n - 1) / n` of a share from each rank,
//! which is the fewest bytes possible. The algorithms are used for large shares, for which the
//! number of rounds matters little.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 69(2), 2009.

use super::{any_group, one_chunk, one_per_rank, single_rank};
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output, scratch,
};

const SOURCE: &str = "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms, JPDC 2009";

/// All-reduce around the ring: reduce-scatter, then all-gather.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "ring",
    collective: Collective::AllReduce,
    summary: "each chunk goes around once to be summed and once to be gathered: fewest bytes, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_per_rank,
    build: &all_reduce,
    complexity: Some(&|spec| Complexity {
        steps: 2 * (spec.size() - 1),
        chunks: 2 * spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// All-gather around the ring.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "ring",
    collective: Collective::AllGather,
    summary: "every rank forwards every chunk: neighbors only, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_gather,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Reduce-scatter around the ring.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "ring",
    collective: Collective::ReduceScatter,
    summary: "every chunk is summed on its way to its owner: neighbors only, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: spec.size() * (spec.size() - 1),
        scratch_chunks: u64::from(spec.ranks > 2),
    }),
};

/// Broadcast along a chain that begins at the root.
pub const BROADCAST: Algorithm = Algorithm {
    name: "chain",
    collective: Collective::Broadcast,
    summary: "forwarded from neighbor to neighbor: full bandwidth with many chunks in progress",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &broadcast,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: spec.size() - 1,
        scratch_chunks: 0,
    }),
};

/// Reduce along a chain that ends at the root.
pub const REDUCE: Algorithm = Algorithm {
    name: "chain",
    collective: Collective::Reduce,
    summary: "summed from neighbor to neighbor: full bandwidth with many chunks in progress",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: spec.size() - 1,
        scratch_chunks: u64::from(spec.ranks > 2),
    }),
};

/// One direction around the circle, for one part of every chunk.
pub(super) struct Ring {
    /// The rank to which this one sends.
    pub(super) next: Rank,
    /// The rank from which this one receives.
    pub(super) prev: Rank,
    /// The chunk of this rank, the chunk of the rank behind it, and so on around the circle.
    pub(super) chunks: Vec<usize>,
}

impl Ring {
    /// Returns a ring toward higher ranks, which carries whole chunks.
    fn new(spec: &GroupSpec, rank: Rank) -> Self {
        Self {
            next: spec.next_by(rank, 1),
            prev: spec.prev_by(rank, 1),
            chunks: (0..spec.ranks).map(|distance| spec.prev_by(rank, distance)).collect(),
        }
    }

    /// Adds to every chunk on its way to its owner. This rank's chunk is complete in `result`.
    pub(super) fn reduce_scatter(
        &self,
        builder: &mut ProgramBuilder,
        partial: impl Fn(usize) -> Chunk,
        result: Chunk,
    ) {
        // Each sum starts at the rank after its owner, so that it gets there last.
        builder.send(self.next, [input(self.chunks[1])]);
        for &chunk in &self.chunks[2..] {
            let sum = partial(chunk);
            builder.recv_reduce(self.prev, [input(chunk)], [sum], false).send(self.next, [sum]);
        }
        builder.recv_reduce(self.prev, [input(self.chunks[0])], [result], true);
    }

    /// Receives the chunks of all other ranks, and sends each one on unless the next rank owns it.
    pub(super) fn all_gather(&self, builder: &mut ProgramBuilder) {
        for (distance, &chunk) in self.chunks.iter().enumerate().skip(1) {
            builder.recv(self.prev, [output(chunk)]);
            if distance + 1 < self.chunks.len() {
                builder.send(self.next, [output(chunk)]);
            }
        }
    }
}

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (ring, mut builder) = (Ring::new(spec, rank), ProgramBuilder::new(rank));
    ring.reduce_scatter(&mut builder, output, output(rank));
    builder.send(ring.next, [output(rank)]);
    ring.all_gather(&mut builder);
    builder.finish(0, 0)
}

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
    let (ring, mut builder) = (Ring::new(spec, rank), ProgramBuilder::new(rank));
    if spec.ranks > 1 {
        // The next rank waits for this message, so it leaves before the local copy.
        builder.send(ring.next, [input(0)]);
    }
    builder.copy(input(0), output(rank));
    ring.all_gather(&mut builder);
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    Ring::new(spec, rank).reduce_scatter(&mut builder, |_| scratch(0), output(0));
    builder.finish(usize::from(spec.ranks > 2), 0)
}

fn broadcast(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    let held = if rank == spec.root { input(0) } else { output(0) };
    if rank != spec.root {
        builder.recv(spec.prev_by(rank, 1), [held]);
    }
    if spec.position(rank) + 1 < spec.ranks {
        builder.send(spec.next_by(rank, 1), [held]);
    }
    if rank == spec.root {
        // The next rank waits for the data, so the root's copy for itself comes last.
        builder.copy(input(0), output(0));
    }
    builder.finish(0, 0)
}

fn reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let (next, prev) = (spec.next_by(rank, 1), spec.prev_by(rank, 1));
    let mut builder = ProgramBuilder::new(rank);
    match spec.position(rank) {
        0 => builder.recv_reduce(prev, [input(0)], [output(0)], true),
        1 => builder.send(next, [input(0)]),
        _ => builder.recv_reduce(prev, [input(0)], [scratch(0)], false).send(next, [scratch(0)]),
    };
    builder.finish(usize::from(spec.position(rank) > 1), 0)
}
