//! Broadcast with one message from the root to every other rank.
//!
//! It has one round, but the root sends a message to every other rank. It is used for few ranks and
//! small shares, and if ranks must wait for no rank except the root.

use super::{any_group, one_chunk};
use crate::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    input, output,
};

/// Broadcast in which the root sends to every rank.
pub const BROADCAST: Algorithm = Algorithm {
    name: "linear",
    collective: Collective::Broadcast,
    summary: "the root sends to all: it may run ahead, and no rank forwards; for small data",
    citation: "folklore; MPICH and Open MPI use it for a handful of ranks",
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

fn broadcast(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank == spec.root {
        for receiver in spec.peers(rank) {
            builder.send(receiver, [input(0)]);
        }
        // The other ranks wait for their messages, so the root's copy for itself comes last.
        builder.copy(input(0), output(0));
    } else {
        builder.recv(spec.root, [output(0)]);
    }
    builder.finish(0, 0)
}
