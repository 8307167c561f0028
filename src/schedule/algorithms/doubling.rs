//! Recursive doubling: neighbours in every dimension of a hypercube exchange
//! all they have. Ranks beyond the largest power of two hand their data to a
//! corner first, and are told the result last.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective
//! communication operations in MPICH", IJHPCA 19(1), 2005.

use super::cube::Cube;
use super::{alone, any, blocks, whole};
use crate::schedule::{
    Algorithm, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output,
};

const SOURCE: &str = "Thakur, Rabenseifner, Gropp: Collective communication in MPICH, IJHPCA 2005";

/// All-reduce by recursive doubling.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "doubling",
    collective: Collective::AllReduce,
    about: "neighbours in a hypercube exchange whole sums: fewest rounds, for tiny data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_reduce,
    cost: |spec| {
        let cube = Cube::new(spec);
        let (corners, extras) = (cube.corners as u64, cube.extras() as u64);
        let steps = cube.dimensions() + cube.detour();
        Cost { steps, blocks: corners * cube.dimensions() + 2 * extras, scratch: 0 }
    },
};

/// All-gather by recursive doubling.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "doubling",
    collective: Collective::AllGather,
    about: "neighbours in a hypercube exchange all they have: fewest rounds, at powers of two",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_gather,
    cost: |spec| {
        let cube = Cube::new(spec);
        let steps = cube.dimensions() + cube.detour();
        Cost { steps, blocks: spec.count() * (spec.count() - 1), scratch: 0 }
    },
};

fn all_reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let (cube, mut builder) = (Cube::new(spec), ProgramBuilder::new(rank));
    if let Some(corner) = cube.corner_of(rank) {
        builder.send(corner, [input(0)]).recv(corner, [output(0)]);
        return builder.finish(0, 0);
    }
    let (extra, sum) = (cube.extra_of(rank), output(0));
    let mut held = input(0);
    if let Some(extra) = extra {
        builder.recv_reduce(extra, [held], [sum], false);
        held = sum;
    }
    let mut size = 1;
    while size < cube.corners {
        let (peer, last) = (rank ^ size, 2 * size == cube.corners);
        builder.send(peer, [held]).recv_reduce(peer, [held], [sum], last);
        held = sum;
        size *= 2;
    }
    if let Some(extra) = extra {
        builder.send(extra, [sum]);
    }
    builder.finish(0, 0)
}

fn all_gather(spec: &Spec, rank: Rank) -> Program {
    let (cube, mut builder) = (Cube::new(spec), ProgramBuilder::new(rank));
    let all_but = |own| blocks((0..spec.ranks).filter(|&chunk| chunk != own), output);
    builder.copy(input(0), output(rank));
    if let Some(corner) = cube.corner_of(rank) {
        builder.send(corner, [output(rank)]).recv(corner, all_but(rank));
        return builder.finish(0, 0);
    }
    let extra = cube.extra_of(rank);
    if let Some(extra) = extra {
        builder.recv(extra, [output(extra)]);
    }
    let mut size = 1;
    while size < cube.corners {
        let peer = rank ^ size;
        builder.send(peer, blocks(cube.face(rank, size), output));
        builder.recv(peer, blocks(cube.face(peer, size), output));
        size *= 2;
    }
    if let Some(extra) = extra {
        builder.send(extra, all_but(extra));
    }
    builder.finish(0, 0)
}
