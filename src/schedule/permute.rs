//! Schedules for ranks whose order differs from their numbers.

use crate::schedule::{Algorithm, Chunk, GroupSpec, Program, Rank, Space, Step};

/// Returns the program of `rank` when ranks take the positions of `order`.
///
/// `order[0]` runs the program of rank 0, and so on. Shares keep the numbers of their ranks.
pub(crate) fn permuted(algorithm: &Algorithm, spec: &GroupSpec, order: &[Rank], rank: Rank) -> Program {
    let stands_at = |who| order.iter().position(|&other| other == who).unwrap_or(who);
    let root = if algorithm.collective.has_root() { stands_at(spec.root) } else { spec.root };
    let mut program = (algorithm.build)(&GroupSpec { root, ..*spec }, stands_at(rank));
    let names = Permutation {
        order,
        chunks_per_share: (algorithm.chunks_per_share)(spec),
        shares: algorithm.collective.shares(spec.ranks, spec.root, rank),
    };
    let steps = program.lane_programs.iter_mut().flat_map(|lane_program| &mut lane_program.steps);
    steps.for_each(|step| names.remap(step));
    program
}

/// Maps ranks and chunks of one order to those of another.
struct Permutation<'o> {
    order: &'o [Rank],
    /// Chunks of a share.
    chunks_per_share: usize,
    /// Shares of the input and of the output.
    shares: (usize, usize),
}

impl Permutation<'_> {
    fn remap(&self, step: &mut Step) {
        match step {
            Step::Send { peer, chunks } | Step::Recv { peer, into: chunks } => {
                *peer = self.order[*peer];
                chunks.iter_mut().for_each(|chunk| self.remap_chunk(chunk));
            }
            Step::RecvReduce { peer, with, into, .. } => {
                *peer = self.order[*peer];
                with.iter_mut().chain(into).for_each(|chunk| self.remap_chunk(chunk));
            }
            Step::Copy { from, into } => {
                [from, into].into_iter().for_each(|place| self.remap_chunk_ref(place))
            }
            Step::Reduce { from, into, .. } => {
                from.iter_mut().chain([into]).for_each(|place| self.remap_chunk_ref(place));
            }
            Step::Wait { peer, .. } => *peer = self.order[*peer],
            Step::Signal => {}
        }
    }

    fn remap_chunk_ref(&self, place: &mut crate::schedule::ChunkRef) {
        place.rank = self.order[place.rank];
        self.remap_chunk(&mut place.chunk);
    }

    /// The owner of a share matters only if there is a share for each rank.
    fn remap_chunk(&self, chunk: &mut Chunk) {
        let shares = match chunk.space {
            Space::Input => self.shares.0,
            Space::Output => self.shares.1,
            Space::Scratch | Space::Window => return,
        };
        if shares == self.order.len() {
            let (share, part) =
                (chunk.index as usize / self.chunks_per_share, chunk.index as usize % self.chunks_per_share);
            chunk.index = (self.order[share] * self.chunks_per_share + part) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::check::{Options, check_schedule};
    use crate::schedule::{Collective, Schedule, find};

    const ORDERS: [&[Rank]; 4] = [&[0, 2, 1, 3], &[3, 0, 2, 4, 1], &[1, 0], &[0]];

    /// Checks that `algorithm` computes its collective in `order`.
    fn assert_permuted_is_correct(algorithm: &Algorithm, root: Rank, order: &[Rank]) {
        let spec = GroupSpec::new(order.len()).with_root(root);
        let programs = (0..spec.ranks).map(|rank| permuted(algorithm, &spec, order, rank)).collect();
        let (parts, reach) = ((algorithm.chunks_per_share)(&spec), algorithm.peer_access);
        let schedule = Schedule {
            algorithm: algorithm.name.to_owned(),
            collective: algorithm.collective,
            spec,
            chunks_per_share: parts,
            peer_access: reach,
            programs,
        };
        check_schedule(&schedule, &Options::default())
            .unwrap_or_else(|wrong| panic!("{algorithm:?} from {root} in {order:?}: {wrong:?}"));
    }

    #[test]
    fn permuted_rings_are_correct() {
        let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
        for (collective, name) in collectives
            .iter()
            .flat_map(|&collective| ["ring", "bidirectional_ring"].map(|name| (collective, name)))
        {
            let algorithm = find(collective, name).unwrap();
            ORDERS.iter().for_each(|order| assert_permuted_is_correct(algorithm, 0, order));
        }
    }

    #[test]
    fn permuted_rooted_collectives_are_correct() {
        for algorithm in Algorithm::ALL.iter().filter(|row| row.collective.has_root()) {
            for (order, root) in ORDERS.iter().flat_map(|order| order.iter().map(move |&root| (order, root)))
            {
                assert_permuted_is_correct(algorithm, root, order);
            }
        }
    }

    #[test]
    fn permuted_chain_follows_the_order() {
        let order = [0, 2, 1, 3];
        let peers = |collective, root| {
            let (algorithm, spec) = (find(collective, "chain").unwrap(), GroupSpec::new(4).with_root(root));
            let sent_to = |rank| {
                let program = permuted(algorithm, &spec, &order, rank);
                let mut steps = program.lane_programs.into_iter().flat_map(|lane_program| lane_program.steps);
                steps.find_map(|step| if let Step::Send { peer, .. } = step { Some(peer) } else { None })
            };
            [0, 1, 2, 3].map(sent_to)
        };
        // 1, 3, 0, 2.
        assert_eq!(peers(Collective::Broadcast, 1), [Some(2), Some(3), None, Some(0)]);
        // 0, 2, 1, 3, and back to 0.
        assert_eq!(peers(Collective::Reduce, 0), [None, Some(3), Some(1), Some(0)]);
    }
}
