//! Two rings at once, in opposite directions, each with half of every chunk.
//!
//! Source: the ring of Patarasuk and Yuan (JPDC 2009), doubled as Jain and
//! Sabharwal do for tori ("Optimal bucket algorithms for large MPI collectives
//! on torus interconnects", ICS 2010).

use super::ring::Ring;
use super::{alone, any};
use crate::schedule::{
    Algorithm, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output, scratch,
};

const SOURCE: &str = "Jain, Sabharwal: Optimal bucket algorithms for large MPI collectives, ICS 2010";

/// All-reduce around two rings.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: "ring2",
    collective: Collective::AllReduce,
    about: "two rings in opposite directions: both ways of full-duplex neighbours, for large data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: |spec| 2 * spec.ranks,
    build: all_reduce,
    cost: |spec| Cost {
        steps: 2 * (spec.count() - 1),
        blocks: 4 * spec.count() * (spec.count() - 1),
        scratch: 0,
    },
};

/// All-gather around two rings.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "ring2",
    collective: Collective::AllGather,
    about: "two rings in opposite directions: both ways of full-duplex neighbours, for large data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: |_| 2,
    build: all_gather,
    cost: |spec| Cost { steps: spec.count() - 1, blocks: 2 * spec.count() * (spec.count() - 1), scratch: 0 },
};

/// Reduce-scatter around two rings.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "ring2",
    collective: Collective::ReduceScatter,
    about: "two rings in opposite directions: both ways of full-duplex neighbours, for large data",
    source: SOURCE,
    reach: Reach::Messages,
    aggregates: false,
    fits: any,
    parts: |_| 2,
    build: reduce_scatter,
    cost: |spec| Cost {
        steps: spec.count() - 1,
        blocks: 2 * spec.count() * (spec.count() - 1),
        scratch: if spec.ranks > 2 { 2 } else { 0 },
    },
};

/// The ring of strand `strand`, which carries that half of every chunk: 0 goes up, 1 goes down.
fn half_ring(spec: &Spec, rank: Rank, strand: usize) -> Ring {
    let (up, down) = (spec.after(rank, 1), spec.before(rank, 1));
    let (next, prev) = if strand == 0 { (up, down) } else { (down, up) };
    let behind =
        |distance| if strand == 0 { spec.before(rank, distance) } else { spec.after(rank, distance) };
    Ring { next, prev, chunks: (0..spec.ranks).map(|distance| 2 * behind(distance) + strand).collect() }
}

fn all_reduce(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 2);
    }
    let mut builder = ProgramBuilder::new(rank);
    for strand in [0, 1] {
        let (ring, own) = (half_ring(spec, rank, strand), output(2 * rank + strand));
        builder.strand(strand);
        ring.reduce_scatter(&mut builder, output, own);
        builder.send(ring.next, [own]);
        ring.all_gather(&mut builder);
    }
    builder.finish(0, 0)
}

fn all_gather(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    for strand in [0, 1] {
        let ring = half_ring(spec, rank, strand);
        builder.strand(strand);
        if spec.ranks > 1 {
            builder.send(ring.next, [input(strand)]);
        }
        builder.copy(input(strand), output(2 * rank + strand));
        ring.all_gather(&mut builder);
    }
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, 2);
    }
    let mut builder = ProgramBuilder::new(rank);
    for strand in [0, 1] {
        builder.strand(strand);
        half_ring(spec, rank, strand).reduce_scatter(&mut builder, |_| scratch(strand), output(strand));
    }
    builder.finish(if spec.ranks > 2 { 2 } else { 0 }, 0)
}
