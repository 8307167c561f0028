//! Recursive halving: neighbours in every dimension of a hypercube share out
//! the sums that are still to be made. Ranks beyond the largest power of two
//! hand their data to a corner first, and are told the result last.
//!
//! Source: Rabenseifner, "Optimization of collective reduction operations",
//! ICCS 2004.

use super::cube::Cube;
use super::partials::Partials;
use super::{alone, any, blocks, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output,
};

const SOURCE: &str = "Rabenseifner: Optimization of collective reduction operations, ICCS 2004";

/// All-reduce: recursive halving, then recursive doubling.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "halving",
    collective: Collective::AllReduce,
    about: "halves are summed, then exchanged: logarithmic at fewest bytes, for middling data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: |spec| Cube::new(spec).corners,
    build: all_reduce,
    cost: |spec| {
        let cube = Cube::new(spec);
        let (corners, extras) = (cube.corners as u64, cube.extras() as u64);
        let steps = 2 * cube.dimensions() + cube.detour();
        Cost { steps, blocks: 2 * corners * (corners - 1 + extras), scratch: 0 }
    },
};

/// Reduce-scatter by recursive halving.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "halving",
    collective: Collective::ReduceScatter,
    about: "neighbours in a hypercube share out the sums to be made: fewest rounds, at powers of two",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: whole,
    build: reduce_scatter,
    cost: |spec| {
        let cube = Cube::new(spec);
        let steps = cube.dimensions() + cube.detour();
        let blocks = spec.count() * (spec.count() - 1) + cube.extras() as u64;
        // A corner with an extra sums all chunks, others half of them; the own one in the output.
        let sums = if cube.extras() > 0 { spec.count() } else { spec.count() / 2 };
        Cost { steps, blocks, scratch: sums.saturating_sub(1) }
    },
};

fn all_reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let (cube, mut builder) = (Cube::new(spec), ProgramBuilder::new(rank));
    let all = |space: fn(usize) -> Block| blocks(0..cube.corners, space);
    if let Some(corner) = cube.corner_of(rank) {
        builder.send(corner, all(input)).recv(corner, all(output));
        return builder.finish(0, 0);
    }
    let mut held: fn(usize) -> Block = input;
    if let Some(extra) = cube.extra_of(rank) {
        builder.recv_reduce(extra, all(input), all(output), false);
        held = output;
    }
    let part = |corner: Rank, size: usize| (corner & !(size - 1)..).take(size);
    let mut size = cube.corners / 2;
    while size > 0 {
        let peer = rank ^ size;
        builder.send(peer, blocks(part(peer, size), held));
        builder.recv_reduce(
            peer,
            blocks(part(rank, size), held),
            blocks(part(rank, size), output),
            size == 1,
        );
        held = output;
        size /= 2;
    }
    size = 1;
    while size < cube.corners {
        let peer = rank ^ size;
        builder.send(peer, blocks(part(rank, size), output)).recv(peer, blocks(part(peer, size), output));
        size *= 2;
    }
    if let Some(extra) = cube.extra_of(rank) {
        builder.send(extra, all(output));
    }
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 1);
    }
    let (cube, mut builder) = (Cube::new(spec), ProgramBuilder::new(rank));
    let inputs = blocks(0..spec.ranks, input);
    if let Some(corner) = cube.corner_of(rank) {
        builder.send(corner, inputs).recv(corner, [output(0)]);
        return builder.finish(0, 0);
    }
    let mut partials = Partials::new(inputs, rank, output(0));
    if let Some(extra) = cube.extra_of(rank) {
        let (with, into): (Vec<_>, Vec<_>) = (0..spec.ranks).map(|chunk| partials.add(chunk)).unzip();
        builder.recv_reduce(extra, with, into, false);
    }
    let mut size = cube.corners / 2;
    while size > 0 {
        let peer = rank ^ size;
        builder.send(peer, blocks(cube.face(peer, size), |chunk| partials.give(chunk)));
        let (with, into): (Vec<_>, Vec<_>) = cube.face(rank, size).map(|chunk| partials.add(chunk)).unzip();
        builder.recv_reduce(peer, with, into, size == 1);
        size /= 2;
    }
    if let Some(extra) = cube.extra_of(rank) {
        builder.send(extra, [partials.give(extra)]);
    }
    builder.finish(partials.scratch(), 0)
}
