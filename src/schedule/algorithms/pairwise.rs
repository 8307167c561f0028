//! Pairwise all-to-all, in which every chunk is sent directly to its receiver.
//!
//! Each rank sends and receives one message for every other rank, and every byte is sent once. The
//! algorithms are used for large chunks.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19(1), 2005.

use super::{any_group, one_chunk};
use crate::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    input, output,
};

/// All-to-all in which round `i` sends to the rank `i` above.
pub const ALL_TO_ALL: Algorithm = Algorithm {
    name: "pairwise",
    collective: Collective::AllToAll,
    summary: "each round another distance, every chunk directly to its receiver: fewest bytes",
    citation: "Thakur, Rabenseifner, Gropp: Collective communication in MPICH, IJHPCA 2005",
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_to_all,
    complexity: Some(&|spec| complexity(spec, spec.size() - 1, 1)),
};

/// All-to-all in which ranks exchange in pairs every round.
pub const ALL_TO_ALL_EXCHANGE: Algorithm = Algorithm {
    name: "pairwise_exchange",
    summary: "ranks exchange chunks in pairs each round: least data in progress, for ranks that share cores",
    build: &exchange,
    complexity: Some(&|spec| complexity(spec, exchanges(spec), 1)),
    ..ALL_TO_ALL
};

/// All-to-all in pairs, with several messages in each direction at a time.
pub const ALL_TO_ALL_WINDOWED: Algorithm = Algorithm {
    name: "pairwise_windowed",
    summary: "pairs exchange several messages at a time: fewest changes of direction, for long chunks of ranks that share cores",
    chunks_per_share: &|_| MESSAGES_PER_EXCHANGE,
    build: &windowed,
    complexity: Some(&|spec| complexity(spec, exchanges(spec), MESSAGES_PER_EXCHANGE as u64)),
    ..ALL_TO_ALL
};

/// The costs of `rounds` rounds in which each pair exchanges `messages` messages.
fn complexity(spec: &GroupSpec, rounds: u64, messages: u64) -> Complexity {
    let chunks = messages * spec.size() * (spec.size() - 1);
    Complexity { steps: messages * rounds, chunks, scratch_chunks: 0 }
}

/// Returns the rounds of exchanges in pairs. If the number of ranks is no power of two, each rank
/// rests in one round, and not all in the same.
fn exchanges(spec: &GroupSpec) -> u64 {
    spec.size() - u64::from(spec.ranks.is_power_of_two())
}

/// Sends and receives are separate lane programs, so that a slow rank delays no sends. Each ordered
/// pair of ranks exchanges one message, so both lane programs may share the lane.
fn all_to_all(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for receiver in spec.peers(rank) {
        builder.send(receiver, [input(receiver)]);
    }
    builder.copy(input(rank), output(rank)).begin_lane(0);
    // The rank just below sends to this one first, and the rank just above sends last.
    for sender in spec.peers(rank).rev() {
        builder.recv(sender, [output(sender)]);
    }
    builder.finish(0, 0)
}

fn exchange(spec: &GroupSpec, rank: Rank) -> Program {
    exchange_with_partners(spec, rank, 1)
}

fn windowed(spec: &GroupSpec, rank: Rank) -> Program {
    exchange_with_partners(spec, rank, MESSAGES_PER_EXCHANGE)
}

/// Builds one lane program, in which a rank goes on with its next partner when it has received from
/// the last one. So few chunks are in progress, and they are still in a cache when they are
/// received. A chunk has `parts` parts, each of them a message. Sends are one ahead of receives, so
/// two slots are enough.
fn exchange_with_partners(spec: &GroupSpec, rank: Rank, parts: usize) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    let part = |chunk: Rank, part: usize| chunk * parts + part;
    for own_part in 0..parts {
        builder.copy(input(part(rank, own_part)), output(part(rank, own_part)));
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

/// Returns the partner of `rank` in a round. Each other rank is the partner once, and each rank has
/// one partner per round.
fn partner(ranks: usize, rank: Rank, round: usize) -> Option<Rank> {
    let partner = match ranks.is_power_of_two() {
        true => rank ^ round,
        false => (ranks + round - rank) % ranks,
    };
    (partner != rank).then_some(partner)
}

/// Number of messages that a rank sends or receives before it changes the direction.
const MESSAGES_PER_EXCHANGE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partner_each_round_covers_every_rank_once() {
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
