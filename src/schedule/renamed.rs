//! A schedule for ranks that stand in another order than that of their numbers.

use super::{Algorithm, Block, Program, Rank, Space, Spec, Step};

/// What `rank` does when the ranks stand in this order: `order[0]` does what rank 0 did, and so on; shares are still those of ranks by
/// their numbers. For collectives without a root.
pub(crate) fn renamed(algorithm: &Algorithm, spec: &Spec, order: &[Rank], rank: Rank) -> Program {
    let stands_at = |who| order.iter().position(|&other| other == who).unwrap_or(who);
    let root = if algorithm.collective.has_root() { stands_at(spec.root) } else { spec.root };
    let mut program = (algorithm.build)(&Spec { root, ..*spec }, stands_at(rank));
    let names = Names {
        order,
        parts: (algorithm.parts)(spec),
        shares: algorithm.collective.shares(spec.ranks, spec.root, rank),
    };
    let steps = program.strands.iter_mut().flat_map(|strand| &mut strand.steps);
    steps.for_each(|step| names.change(step));
    program
}

/// What was who's, and becomes whose.
struct Names<'o> {
    order: &'o [Rank],
    /// Blocks of a share.
    parts: usize,
    /// Of the input and of the output.
    shares: (usize, usize),
}

impl Names<'_> {
    fn change(&self, step: &mut Step) {
        match step {
            Step::Send { peer, blocks } | Step::Recv { peer, into: blocks } => {
                *peer = self.order[*peer];
                blocks.iter_mut().for_each(|block| self.change_block(block));
            }
            Step::RecvReduce { peer, with, into, .. } => {
                *peer = self.order[*peer];
                with.iter_mut().chain(into).for_each(|block| self.change_block(block));
            }
            Step::Copy { from, into } => [from, into].into_iter().for_each(|place| self.change_place(place)),
            Step::Reduce { from, into, .. } => {
                from.iter_mut().chain([into]).for_each(|place| self.change_place(place));
            }
            Step::Wait { peer, .. } => *peer = self.order[*peer],
            Step::Signal => {}
        }
    }

    fn change_place(&self, place: &mut super::Place) {
        place.rank = self.order[place.rank];
        self.change_block(&mut place.block);
    }

    /// Only where there is a share for each rank it matters whose it is.
    fn change_block(&self, block: &mut Block) {
        let shares = match block.space {
            Space::Input => self.shares.0,
            Space::Output => self.shares.1,
            Space::Scratch | Space::Window => return,
        };
        if shares == self.order.len() {
            let (share, part) = (block.index as usize / self.parts, block.index as usize % self.parts);
            block.index = (self.order[share] * self.parts + part) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::check::{Options, check_schedule};
    use crate::schedule::{Collective, Schedule, find};

    const ORDERS: [&[Rank]; 4] = [&[0, 2, 1, 3], &[3, 0, 2, 4, 1], &[1, 0], &[0]];

    /// That `algorithm` does in `order` what it is for.
    fn is_right(algorithm: &Algorithm, root: Rank, order: &[Rank]) {
        let spec = Spec { ranks: order.len(), root, aggregation: 1 };
        let programs = (0..spec.ranks).map(|rank| renamed(algorithm, &spec, order, rank)).collect();
        let (parts, reach) = ((algorithm.parts)(&spec), algorithm.reach);
        let schedule = Schedule { collective: algorithm.collective, spec, parts, reach, programs };
        check_schedule(&schedule, &Options::default())
            .unwrap_or_else(|wrong| panic!("{algorithm:?} from {root} in {order:?}: {wrong:?}"));
    }

    #[test]
    fn rings_in_any_order_are_right() {
        let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
        for (collective, name) in
            collectives.iter().flat_map(|&all| ["ring", "ring2"].map(|name| (all, name)))
        {
            let algorithm = find(collective, name).unwrap();
            ORDERS.iter().for_each(|order| is_right(algorithm, 0, order));
        }
    }

    #[test]
    fn what_has_a_root_is_right_in_any_order() {
        for algorithm in Algorithm::ALL.iter().filter(|row| row.collective.has_root()) {
            for (order, root) in ORDERS.iter().flat_map(|order| order.iter().map(move |&root| (order, root)))
            {
                is_right(algorithm, root, order);
            }
        }
    }

    #[test]
    fn chains_go_from_neighbour_to_neighbour() {
        let order = [0, 2, 1, 3];
        let peers = |collective, root| {
            let (algorithm, spec) =
                (find(collective, "chain").unwrap(), Spec { ranks: 4, root, aggregation: 1 });
            let sent_to = |rank| {
                let program = renamed(algorithm, &spec, &order, rank);
                let mut steps = program.strands.into_iter().flat_map(|strand| strand.steps);
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
