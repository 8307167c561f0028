//! Pairwise exchange: every block straight to its receiver.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective
//! communication operations in MPICH", IJHPCA 19(1), 2005.

use super::{any, whole};
use crate::schedule::{
    Algorithm, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output,
};

/// All-to-all in which the i-th round goes i ranks up.
pub const ALL_TO_ALL: Algorithm = Algorithm {
    name: "pairwise",
    collective: Collective::AllToAll,
    about: "each round another distance, every block straight to its receiver: fewest bytes",
    source: "Thakur, Rabenseifner, Gropp: Collective communication in MPICH, IJHPCA 2005",
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_to_all,
    cost: |spec| Cost { steps: spec.count() - 1, blocks: spec.count() * (spec.count() - 1), scratch: 0 },
};

/// Sends and receives are strands of their own: a rank that lags holds up nobody's sends. Each
/// ordered pair exchanges one message, so both strands may share the lane.
fn all_to_all(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for to in spec.peers(rank) {
        builder.send(to, [input(to)]);
    }
    builder.copy(input(rank), output(rank)).strand(0);
    for from in spec.peers(rank).rev() {
        builder.recv(from, [output(from)]);
    }
    builder.finish(0, 0)
}
