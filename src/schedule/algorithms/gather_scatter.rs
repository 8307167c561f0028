//! Gather and scatter: straight, and along a binomial tree.
//!
//! Source: Chan, Heimlich, Purkayastha, van de Geijn, "Collective
//! communication: theory, practice, and experience", CCPE 19(13), 2007.

use super::binomial::{SOURCE, children, parent, subtree};
use super::{any, blocks, rounds_of_doubling, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output, scratch,
};

/// Gather up a binomial tree.
pub const GATHER: Algorithm = Algorithm {
    name: "binomial",
    collective: Collective::Gather,
    about: "chunks are packed on their way up a tree: fewest rounds, for small data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: gather,
    cost: tree_cost,
};

/// Scatter down a binomial tree.
pub const SCATTER: Algorithm = Algorithm {
    name: "binomial",
    collective: Collective::Scatter,
    about: "packed chunks are parted on their way down a tree: fewest rounds, for small data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: scatter,
    cost: tree_cost,
};

/// Gather in which all send to the root.
pub const GATHER_LINEAR: Algorithm = Algorithm {
    name: "linear",
    collective: Collective::Gather,
    about: "all send to the root: every chunk moves once, for large data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: gather_linear,
    cost: linear_cost,
};

/// Scatter in which the root sends to all.
pub const SCATTER_LINEAR: Algorithm = Algorithm {
    name: "linear",
    collective: Collective::Scatter,
    about: "the root sends to all: every chunk moves once, for large data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: scatter_linear,
    cost: linear_cost,
};

fn linear_cost(spec: &Spec) -> Cost {
    Cost { steps: spec.count() - 1, blocks: spec.count() - 1, scratch: 0 }
}

/// A chunk makes one hop for each bit of its position. Of the root's children one of the two
/// largest has the most below it: the last, cut short by the ranks there are, or the one before.
fn tree_cost(spec: &Spec) -> Cost {
    let half = spec.count().next_power_of_two() / 2;
    let below = (spec.count() - half).max(half / 2).saturating_sub(1);
    Cost {
        steps: rounds_of_doubling(spec.ranks),
        blocks: (0..spec.count()).map(|position| u64::from(position.count_ones())).sum(),
        scratch: if spec.ranks == 1 { 0 } else { below },
    }
}

/// Where the rank at `position` keeps the chunk of a `descendant`; at the root, in `buffer`.
fn place(spec: &Spec, position: usize, descendant: usize, buffer: fn(usize) -> Block) -> Block {
    match position {
        0 => buffer(spec.seated(descendant)),
        _ => scratch(descendant - position - 1),
    }
}

/// Scratch blocks of the rank at `position`: what passes through it.
fn passing(spec: &Spec, position: usize) -> usize {
    if position == 0 { 0 } else { subtree(position, spec.ranks).len() - 1 }
}

fn gather(spec: &Spec, rank: Rank) -> Program {
    let (mut builder, position) = (ProgramBuilder::new(rank), spec.position(rank));
    if position == 0 {
        builder.copy(input(0), output(rank));
    }
    let chunks = |top| blocks(subtree(top, spec.ranks), |below| place(spec, position, below, output));
    for child in children(position, spec.ranks) {
        builder.recv(spec.seated(child), chunks(child));
    }
    if position > 0 {
        let mut packed = vec![input(0)];
        packed.extend((0..passing(spec, position)).map(scratch));
        builder.send(spec.seated(parent(position)), packed);
    }
    builder.finish(passing(spec, position), 0)
}

fn scatter(spec: &Spec, rank: Rank) -> Program {
    let (mut builder, position) = (ProgramBuilder::new(rank), spec.position(rank));
    if position > 0 {
        let mut packed = vec![output(0)];
        packed.extend((0..passing(spec, position)).map(scratch));
        builder.recv(spec.seated(parent(position)), packed);
    }
    let chunks = |top| blocks(subtree(top, spec.ranks), |below| place(spec, position, below, input));
    for child in children(position, spec.ranks).rev() {
        builder.send(spec.seated(child), chunks(child));
    }
    if position == 0 {
        builder.copy(input(rank), output(0));
    }
    builder.finish(passing(spec, position), 0)
}

fn gather_linear(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.send(spec.root, [input(0)]);
        return builder.finish(0, 0);
    }
    builder.copy(input(0), output(rank));
    for from in spec.peers(rank) {
        builder.recv(from, [output(from)]);
    }
    builder.finish(0, 0)
}

fn scatter_linear(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.recv(spec.root, [output(0)]);
        return builder.finish(0, 0);
    }
    for to in spec.peers(rank) {
        builder.send(to, [input(to)]);
    }
    builder.copy(input(rank), output(0));
    builder.finish(0, 0)
}
