//! Straight from the root: nobody waits for anybody but the root.

use super::{any, whole};
use crate::schedule::{
    Algorithm, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output,
};

/// Broadcast in which the root sends to all.
pub const BROADCAST: Algorithm = Algorithm {
    name: "linear",
    collective: Collective::Broadcast,
    about: "the root sends to all: it may run ahead, and nobody passes anything on; for small data",
    source: "folklore; MPICH and Open MPI use it for a handful of ranks",
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: broadcast,
    cost: |spec| Cost { steps: spec.count() - 1, blocks: spec.count() - 1, scratch: 0 },
};

fn broadcast(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank == spec.root {
        for to in spec.peers(rank) {
            builder.send(to, [input(0)]);
        }
        builder.copy(input(0), output(0));
    } else {
        builder.recv(spec.root, [output(0)]);
    }
    builder.finish(0, 0)
}
