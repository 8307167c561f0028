//! The dissemination barrier: in each round everyone has heard, through
//! others, of twice as many ranks.
//!
//! Source: Hensgen, Finkel, Manber, "Two algorithms for barrier
//! synchronization", IJPP 17(1), 1988.

use super::{any, rounds_of_doubling, whole};
use crate::schedule::{Algorithm, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec};

/// Barrier by dissemination.
pub const DISSEMINATION: Algorithm = Algorithm {
    name: "dissemination",
    collective: Collective::Barrier,
    about: "empty messages over doubling distances: fewest rounds, nobody waits for a root",
    source: "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, IJPP 1988",
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: dissemination,
    cost: |spec| Cost { steps: rounds_of_doubling(spec.ranks), blocks: 0, scratch: 0 },
};

fn dissemination(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    let mut heard_of = 1;
    while heard_of < spec.ranks {
        builder.send(spec.after(rank, heard_of), []).recv(spec.before(rank, heard_of), []);
        heard_of *= 2;
    }
    builder.finish(0, 0)
}
