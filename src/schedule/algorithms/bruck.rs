//! Bruck's algorithms, which need a logarithmic number of rounds for any number of ranks.
//!
//! In the all-gather, round `i` sends up to `2^i` chunks over a distance of `2^i` ranks. In the
//! all-to-all, a chunk makes one hop for each bit of the distance to its receiver, so it is sent
//! more than once. They are used for small shares, for which the number of messages determines the
//! time.
//!
//! Chunks are addressed one by one. This spares the all-gather its final rotation and the all-to-
//! all both of its rotations.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE TPDS 8(11), 1997.

use super::{any_group, ceil_log2, chunk_list, one_chunk};
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output, scratch,
};

const SOURCE: &str = "Bruck, Ho, Kipnis, Upfal, Weathersby: All-to-all communications, IEEE TPDS 1997";

/// All-gather in which the number of known chunks doubles every round.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "bruck",
    collective: Collective::AllGather,
    summary: "each round doubles the chunks known: fewest rounds for any number of ranks, for small data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_gather,
    complexity: Some(&|spec| Complexity {
        steps: ceil_log2(spec.ranks),
        chunks: spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// All-to-all through intermediate ranks.
pub const ALL_TO_ALL: Algorithm = Algorithm {
    name: "bruck",
    collective: Collective::AllToAll,
    summary: "a chunk makes one hop for each bit of its distance, packed with others: fewest messages, for tiny data",
    citation: SOURCE,
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_to_all,
    complexity: Some(&|spec| Complexity {
        steps: ceil_log2(spec.ranks),
        // One hop for each bit of each distance.
        chunks: spec.size() * (0..spec.size()).map(|distance| u64::from(distance.count_ones())).sum::<u64>(),
        // A chunk waits here between its hops, so each distance of more than one hop needs one.
        scratch_chunks: spec.size() - 1 - ceil_log2(spec.ranks),
    }),
};

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(0), output(rank));
    let mut known = 1;
    while known < spec.ranks {
        let count = known.min(spec.ranks - known);
        let (receiver, sender) = (spec.prev_by(rank, known), spec.next_by(rank, known));
        let chunks = |owner| chunk_list(0..count, |offset| output(spec.next_by(owner, offset)));
        builder.send(receiver, chunks(rank)).recv(sender, chunks(sender));
        known *= 2;
    }
    builder.finish(0, 0)
}

fn all_to_all(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(rank), output(rank));
    let mut hop = 1;
    while hop < spec.ranks {
        let traveling = || (hop..spec.ranks).filter(|distance| distance & hop != 0);
        let sent = chunk_list(traveling(), |distance| location_before(spec, rank, distance, hop));
        let received = chunk_list(traveling(), |distance| location_after(spec, rank, distance, hop));
        builder.send(spec.next_by(rank, hop), sent).recv(spec.prev_by(rank, hop), received);
        hop *= 2;
    }
    builder.finish(spec.ranks - 1 - ceil_log2(spec.ranks) as usize, 0)
}

/// Returns the place, before `hop`, of the chunk whose total distance is `distance`. Before the
/// first hop, this is the input.
fn location_before(spec: &GroupSpec, rank: Rank, distance: usize, hop: usize) -> Chunk {
    if distance & (hop - 1) == 0 { input(spec.next_by(rank, distance)) } else { scratch_for(distance) }
}

/// Returns the place, after `hop`, of the chunk whose total distance is `distance`. After the last
/// hop, this is the output.
fn location_after(spec: &GroupSpec, rank: Rank, distance: usize, hop: usize) -> Chunk {
    if distance < 2 * hop { output(spec.prev_by(rank, distance)) } else { scratch_for(distance) }
}

/// The scratch chunk for a `distance` of several hops. Powers of two take one hop and need none.
const fn scratch_for(distance: usize) -> Chunk {
    scratch(distance - 2 - distance.ilog2() as usize)
}
