//! Pairwise all-to-all: every block straight to its receiver.
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

/// All-to-all in which every round pairs ranks off.
pub const ALL_TO_ALL_EXCHANGE: Algorithm = Algorithm {
    name: "exchange",
    about: "each round pairs ranks off, who swap their blocks: least under way, for ranks that share cores",
    build: exchange,
    // But with powers of two, everybody rests in one round, and not all in the same.
    cost: |spec| Cost {
        steps: spec.count() - u64::from(spec.ranks.is_power_of_two()),
        ..(ALL_TO_ALL.cost)(spec)
    },
    ..ALL_TO_ALL
};

/// The same with several messages each way at a time.
pub const ALL_TO_ALL_BURSTS: Algorithm = Algorithm {
    name: "bursts",
    about: "pairs swap several messages at a time: fewest turns, for long blocks of ranks that share cores",
    parts: |_| BURST,
    build: bursts,
    cost: |spec| {
        let Cost { steps, blocks, scratch } = (ALL_TO_ALL_EXCHANGE.cost)(spec);
        Cost { steps: BURST as u64 * steps, blocks: BURST as u64 * blocks, scratch }
    },
    ..ALL_TO_ALL
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

fn exchange(spec: &Spec, rank: Rank) -> Program {
    swaps(spec, rank, 1)
}

fn bursts(spec: &Spec, rank: Rank) -> Program {
    swaps(spec, rank, BURST)
}

/// One strand: a rank goes to its next partner when it has heard from the last, so few blocks are under way, and still in a
/// cache when they are taken. Each block has so many parts, and each part is a message; what is sent is one ahead of what
/// is received, so two slots are enough.
fn swaps(spec: &Spec, rank: Rank, parts: usize) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    let part = |block: Rank, part: usize| block * parts + part;
    for own in 0..parts {
        builder.copy(input(part(rank, own)), output(part(rank, own)));
    }
    for partner in (0..spec.ranks).filter_map(|round| partner(spec.ranks, rank, round)) {
        for next in 0..=parts {
            if next < parts {
                builder.send(partner, [input(part(partner, next))]);
            }
            if next > 0 {
                builder.recv(partner, [output(part(partner, next - 1))]);
            }
        }
    }
    builder.finish(0, 0)
}

/// Whom `rank` swaps with in a round: each other rank once, and never one that swaps with somebody else in that round.
fn partner(ranks: usize, rank: Rank, round: usize) -> Option<Rank> {
    let partner = match ranks.is_power_of_two() {
        true => rank ^ round,
        false => (ranks + round - rank) % ranks,
    };
    (partner != rank).then_some(partner)
}

/// Messages each way before a rank turns to the other way.
const BURST: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_pairs_ranks_off_and_everybody_meets_everybody_once() {
        for ranks in 1..=33 {
            for rank in 0..ranks {
                let partners = |rank| (0..ranks).filter_map(move |round| partner(ranks, rank, round));
                let mut met: Vec<Rank> = partners(rank).collect();
                met.sort_unstable();
                assert!(met.into_iter().eq((0..ranks).filter(|&other| other != rank)), "{rank} of {ranks}");
                for round in 0..ranks {
                    let back = partner(ranks, rank, round).and_then(|other| partner(ranks, other, round));
                    assert!(back.is_none_or(|back| back == rank), "{rank} of {ranks} in round {round}");
                }
            }
        }
    }
}
