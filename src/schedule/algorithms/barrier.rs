//! Dissemination barrier.
//!
//! In round `i` every rank signals the rank `2^i` above it and waits for the rank `2^i` below.
//! After each round, a rank has heard of twice as many ranks, directly or through others. The
//! number of rounds is the logarithm of the number of ranks. The algorithm is used if ranks have no
//! common window.
//!
//! Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988.

use super::{any_group, ceil_log2, one_chunk};
use crate::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
};

/// Barrier in a logarithmic number of rounds of empty messages.
pub const DISSEMINATION: Algorithm = Algorithm {
    name: "dissemination",
    collective: Collective::Barrier,
    summary: "empty messages over doubling distances: fewest rounds, and no rank waits for a root",
    citation: "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, IJPP 1988",
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &dissemination,
    complexity: Some(&|spec| Complexity { steps: ceil_log2(spec.ranks), chunks: 0, scratch_chunks: 0 }),
};

fn dissemination(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    let mut heard_of = 1;
    while heard_of < spec.ranks {
        builder.send(spec.next_by(rank, heard_of), []).recv(spec.prev_by(rank, heard_of), []);
        heard_of *= 2;
    }
    builder.finish(0, 0)
}
