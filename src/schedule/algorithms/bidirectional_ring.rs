//! Two rings in opposite directions. Each of them carries half of every chunk.
//!
//! Each rank sends as many bytes as in one ring, but half of them in each direction at the same
//! time. The algorithm suits links that carry both directions at full speed.
//!
//! Source: the ring of Patarasuk and Yuan (JPDC 2009), doubled as Jain and Sabharwal do for tori
//! ("Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010).

use crate::schedule::algorithms::ring::Ring;
use crate::schedule::algorithms::{any_group, single_rank};
use crate::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    input, output, scratch,
};

const SOURCE: &str = "Jain, Sabharwal: Optimal bucket algorithms for large MPI collectives, ICS 2010";

/// All-reduce: reduce-scatter, then all-gather, around two rings.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "bidirectional_ring",
    collective: Collective::AllReduce,
    summary: "two rings in opposite directions: both directions of full-duplex links, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|spec| 2 * spec.ranks,
    build: &all_reduce,
    complexity: Some(&|spec| Complexity {
        steps: 2 * (spec.size() - 1),
        chunks: 4 * spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// All-gather around two rings.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "bidirectional_ring",
    collective: Collective::AllGather,
    summary: "two rings in opposite directions: both directions of full-duplex links, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|_| 2,
    build: &all_gather,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: 2 * spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Reduce-scatter around two rings.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "bidirectional_ring",
    collective: Collective::ReduceScatter,
    summary: "two rings in opposite directions: both directions of full-duplex links, for large data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &|_| 2,
    build: &reduce_scatter,
    complexity: Some(&|spec| Complexity {
        steps: spec.size() - 1,
        chunks: 2 * spec.size() * (spec.size() - 1),
        scratch_chunks: if spec.ranks > 2 { 2 } else { 0 },
    }),
};

/// Returns the ring of lane program `lane_program`, which carries one half of every chunk. Ring 0
/// sends to higher ranks, and ring 1 to lower ranks.
fn half_ring(spec: &GroupSpec, rank: Rank, lane_program: usize) -> Ring {
    let (up, down) = (spec.next_by(rank, 1), spec.prev_by(rank, 1));
    let (next, prev) = if lane_program == 0 { (up, down) } else { (down, up) };
    let rank_behind = |distance| {
        if lane_program == 0 { spec.prev_by(rank, distance) } else { spec.next_by(rank, distance) }
    };
    Ring {
        next,
        prev,
        chunks: (0..spec.ranks).map(|distance| 2 * rank_behind(distance) + lane_program).collect(),
    }
}

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 2);
    }
    let mut builder = ProgramBuilder::new(rank);
    for lane_program in [0, 1] {
        let (ring, own_chunk) = (half_ring(spec, rank, lane_program), output(2 * rank + lane_program));
        builder.begin_lane(lane_program);
        ring.reduce_scatter(&mut builder, output, own_chunk);
        builder.send(ring.next, [own_chunk]);
        ring.all_gather(&mut builder);
    }
    builder.finish(0, 0)
}

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for lane_program in [0, 1] {
        let ring = half_ring(spec, rank, lane_program);
        builder.begin_lane(lane_program);
        if spec.ranks > 1 {
            builder.send(ring.next, [input(lane_program)]);
        }
        builder.copy(input(lane_program), output(2 * rank + lane_program));
        ring.all_gather(&mut builder);
    }
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 2);
    }
    let mut builder = ProgramBuilder::new(rank);
    for lane_program in [0, 1] {
        builder.begin_lane(lane_program);
        half_ring(spec, rank, lane_program).reduce_scatter(
            &mut builder,
            |_| scratch(lane_program),
            output(lane_program),
        );
    }
    builder.finish(if spec.ranks > 2 { 2 } else { 0 }, 0)
}
