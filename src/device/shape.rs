//! Properties of an algorithm that the GPU path derives from its programs.

use crate::schedule::lower::{Combine, Instr, Transfer, lower};
use crate::schedule::{
    Algorithm, ChunkRef, Collective, CombineOrder, GroupSpec, PeerAccess, Rank, Space, chunk_at, input,
    output, window,
};
use std::collections::HashMap;

/// The properties of one algorithm for one group. They are the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// True if programs access the inputs of peers.
    pub(super) accesses_peer_inputs: bool,
    /// True if programs access the outputs of peers.
    pub(super) accesses_peer_outputs: bool,
    /// True if the ranks take their places in the order of the ring. Messages go to neighbors in a
    /// ring, or from and to a root.
    pub(super) follows_ring_order: bool,
    /// True if every rank reduces all inputs in rank order after one exchange.
    pub(super) is_one_shot: bool,
}

/// The shapes of the algorithms used so far.
#[derive(Default)]
pub(super) struct ShapeCache(HashMap<(usize, GroupSpec), Shape>);

impl ShapeCache {
    /// Returns the shape of `algorithm`, derived at the first call.
    pub(super) fn get(&mut self, algorithm: &'static Algorithm, spec: &GroupSpec) -> Shape {
        let key = (std::ptr::from_ref(algorithm) as usize, *spec);
        *self.0.entry(key).or_insert_with(|| Shape::of(algorithm, spec))
    }
}

impl Shape {
    /// Derives the shape from the programs of all ranks.
    ///
    /// A group of one rank is treated as two ranks, because a rank without peers shows nothing.
    pub(super) fn of(algorithm: &Algorithm, spec: &GroupSpec) -> Self {
        let spec = &GroupSpec { ranks: spec.ranks.max(2), ..*spec };
        let programs: Vec<Vec<Instr>> = (0..spec.ranks).map(|rank| instrs(algorithm, spec, rank)).collect();
        let ranked = || programs.iter().enumerate();
        let accesses_peers = |space| {
            ranked().any(|(rank, instrs)| {
                let mut places =
                    transfers(instrs).flat_map(|transfer| transfer.sources.iter().chain(&transfer.targets));
                places.any(|place| place.rank != rank && place.chunk.space == space)
            })
        };
        let is_ring = || ranked().all(|(rank, instrs)| talks_to_neighbors_only(instrs, rank, spec.ranks));
        let any_order = algorithm.combine_order == CombineOrder::Unspecified;
        Self {
            accesses_peer_inputs: accesses_peers(Space::Input),
            accesses_peer_outputs: accesses_peers(Space::Output),
            follows_ring_order: algorithm.peer_access == PeerAccess::TwoSided
                && any_order
                && (algorithm.collective.has_root() || is_ring()),
            is_one_shot: algorithm.collective == Collective::AllReduce
                && (algorithm.chunks_per_share)(spec) == 1
                && ranked().all(|(rank, instrs)| reduces_in_one_exchange(instrs, rank, spec.ranks)),
        }
    }
}

fn instrs(algorithm: &Algorithm, spec: &GroupSpec, rank: Rank) -> Vec<Instr> {
    let lanes = lower((algorithm.build)(spec, rank), rank, false);
    lanes.into_iter().flat_map(|lane| lane.instrs).collect()
}

fn transfers(instrs: &[Instr]) -> impl Iterator<Item = &Transfer> {
    instrs
        .iter()
        .filter_map(|instr| if let Instr::Transfer(transfer) = instr { Some(transfer) } else { None })
}

/// Returns whether a rank exchanges messages with the ranks before and after it in a ring only.
fn talks_to_neighbors_only(instrs: &[Instr], rank: Rank, ranks: usize) -> bool {
    let neighbors = [(rank + 1) % ranks, (rank + ranks - 1) % ranks];
    instrs.iter().all(|instr| match instr {
        Instr::Send { peer, .. } | Instr::Recv { peer, .. } | Instr::RecvReduce { peer, .. } => {
            neighbors.contains(peer)
        }
        _ => true,
    })
}

/// Returns whether a rank stages its input, and then reduces the inputs of all ranks in rank order.
fn reduces_in_one_exchange(instrs: &[Instr], rank: Rank, ranks: usize) -> bool {
    let transfers: Vec<&Transfer> = transfers(instrs).collect();
    let [stage, reduce] = transfers[..] else {
        return false;
    };
    let (own_input, own_window) = (chunk_at(rank, input(0)), chunk_at(rank, window(0)));
    let is_operand = |(source, place): (Rank, &ChunkRef)| {
        *place == chunk_at(source, window(0)) || source == rank && *place == own_input
    };
    (&stage.sources[..], &stage.targets[..]) == (&[own_input], &[own_window])
        && reduce.combine == Combine::Reduce { finish: true }
        && reduce.sources.len() == ranks
        && reduce.sources.iter().enumerate().all(is_operand)
        && reduce.targets == [chunk_at(rank, output(0))]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the algorithms whose shape at 8 ranks has a property.
    fn names(has: impl Fn(&Shape) -> bool) -> Vec<String> {
        let spec = GroupSpec { ranks: 8, root: 3, aggregation: 2 };
        let rows = Algorithm::ALL.iter().filter(|row| (row.supports)(&spec) && has(&Shape::of(row, &spec)));
        rows.map(|row| format!("{} {}", row.collective, row.name)).collect()
    }

    #[test]
    fn rings_and_rooted_messages_follow_ring_order() {
        let found = names(|shape| shape.follows_ring_order);
        let mut expected = Vec::new();
        for collective in ["all_reduce", "all_gather", "reduce_scatter"] {
            expected.extend(["ring", "bidirectional_ring"].map(|name| format!("{collective} {name}")));
        }
        expected.extend(["chain", "tree", "binomial", "linear"].map(|name| format!("broadcast {name}")));
        expected.extend(["chain", "tree", "binomial"].map(|name| format!("reduce {name}")));
        for collective in ["gather", "scatter"] {
            expected.extend(["binomial", "linear"].map(|name| format!("{collective} {name}")));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn one_shot_is_one_exchange_and_a_reduction() {
        assert_eq!(names(|shape| shape.is_one_shot), ["all_reduce oneshot"]);
    }

    #[test]
    fn only_zero_copy_accesses_buffers_of_peers() {
        let inputs = ["all_reduce zero_copy", "reduce_scatter zero_copy", "broadcast zero_copy"];
        let outputs = [
            "all_reduce zero_copy",
            "all_gather zero_copy",
            "broadcast zero_copy_push",
            "all_reduce zero_copy_scaled",
        ];
        let sorted = |names: Vec<String>| {
            let mut names = names;
            names.sort();
            names
        };
        let owned = |names: &[&str]| sorted(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(sorted(names(|shape| shape.accesses_peer_inputs)), owned(&inputs));
        assert_eq!(sorted(names(|shape| shape.accesses_peer_outputs)), owned(&outputs));
    }
}
