//! Collectives over windows that reduce: operands are read where they lie, in
//! one pass and in the order of the ranks, so that every rank's result is the
//! same expression.
//!
//! Source: all-pairs all-reduce, in one step or two, as in Cowan, Maleki, Musuvathi,
//! Saarikivi, Xiong, "MSCCLang: Microsoft collective communication language",
//! ASPLOS 2023; windows as in Graham and Shipman, EuroPVM/MPI 2008.

use super::direct::{SOURCE, hand_over, laid, lay_out};
use super::{alone, any, one_per_rank, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Place, Program, ProgramBuilder, Rank, Reach, Spec, at, input, output,
    window,
};

const SHOTS: &str = "Cowan, Maleki, Musuvathi, Saarikivi, Xiong: MSCCLang, ASPLOS 2023";

/// All-reduce in which everyone reduces everything.
pub const ONE_SHOT: Algorithm = Algorithm {
    name: "oneshot",
    collective: Collective::AllReduce,
    about: "everyone reads all windows and reduces for itself: one hand-over, for small data",
    source: SHOTS,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: one_shot,
    cost: |spec| hand_over(spec, spec.count() * (spec.count() - 1)),
};

/// All-reduce in which everyone reduces its chunk, and reads the others'.
pub const TWO_SHOT: Algorithm = Algorithm {
    name: "twoshot",
    collective: Collective::AllReduce,
    about: "everyone reduces one chunk and reads the results of others: fewest bytes, two hand-overs",
    source: SHOTS,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: one_per_rank,
    build: two_shot,
    cost: |spec| Cost {
        steps: if spec.ranks > 1 { 2 } else { 0 },
        blocks: 2 * spec.count() * (spec.count() - 1),
        scratch: 0,
    },
};

/// Reduce-scatter from windows.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::ReduceScatter,
    about: "everyone reduces its chunk from all windows: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: reduce_scatter,
    cost: |spec| hand_over(spec, spec.count() * (spec.count() - 1)),
};

/// Reduce from windows.
pub const REDUCE: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::Reduce,
    about: "the root reduces from all windows: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: reduce,
    cost: |spec| hand_over(spec, spec.count() - 1),
};

/// Waits for all peers, then reduces `own` and what each of them has laid out, in rank order.
fn reduce_all(
    builder: &mut ProgramBuilder,
    spec: &Spec,
    rank: Rank,
    own: Block,
    theirs: impl Fn(Rank) -> Block,
    into: Block,
) {
    for peer in spec.peers(rank) {
        builder.wait(peer, 1);
    }
    let operand = |from| if from == rank { own } else { theirs(from) };
    let operands: Vec<Place> = (0..spec.ranks).map(|from| at(from, operand(from))).collect();
    builder.reduce(operands, into, true);
}

fn one_shot(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(0), window(0)).signal();
    reduce_all(&mut builder, spec, rank, input(0), |_| window(0), output(0));
    builder.finish(0, 1)
}

fn two_shot(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    lay_out(&mut builder, spec, rank);
    let result = |owner| laid(spec, owner, owner);
    reduce_all(&mut builder, spec, rank, input(rank), |peer| laid(spec, peer, rank), result(rank));
    builder.signal().copy(result(rank), output(rank));
    for peer in spec.peers(rank) {
        builder.wait(peer, 2).get(peer, result(peer), output(peer));
    }
    builder.finish(0, spec.ranks)
}

fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    lay_out(&mut builder, spec, rank);
    reduce_all(&mut builder, spec, rank, input(rank), |peer| laid(spec, peer, rank), output(0));
    builder.finish(0, spec.ranks - 1)
}

fn reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.copy(input(0), window(0)).signal();
        return builder.finish(0, 1);
    }
    reduce_all(&mut builder, spec, rank, input(0), |_| window(0), output(0));
    builder.finish(0, 0)
}
