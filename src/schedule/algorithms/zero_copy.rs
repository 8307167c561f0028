//! Collectives without staging: a rank reads and writes the buffers of its
//! peers where they are. Each input is read once and each output written once;
//! no algorithm moves fewer bytes. (No all-to-all: in place, each rank would
//! overwrite what its peers have yet to read.)
//!
//! Two more reach outputs alone, for what a rank cannot know of its peers: where
//! the root of a broadcast has its input, and by which factor a peer's elements
//! are multiplied before they are summed.
//!
//! A first round of signals says that inputs are there and outputs may be
//! written, a second one that everything was read and written.
//!
//! Source: direct algorithms on registered memory, as in Shah et al., "MSCCL++:
//! Rethinking GPU communication abstractions", 2025, and NCCL 2.27's symmetric
//! memory kernels.

use super::direct::meet;
use super::{alone, one_per_rank, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Place, Program, ProgramBuilder, Rank, Reach, Spec, at, input, output,
};

pub(crate) const NAME: &str = "zerocopy";
const SOURCE: &str = "Shah et al.: MSCCL++, 2025; symmetric memory in NCCL 2.27";

/// All-reduce: everyone reduces its chunk from all inputs into all outputs.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::AllReduce,
    about: "everyone reduces its chunk from all inputs into all outputs: nothing is staged",
    source: SOURCE,
    reach: Reach::Buffers,
    aggregates: false,
    fits: few,
    parts: one_per_rank,
    build: all_reduce,
    cost: |spec| cost(spec, 2 * spec.count() * (spec.count() - 1)),
};

/// All-gather: everyone writes its input into all outputs.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::AllGather,
    about: "everyone writes its input into all outputs: nothing is staged",
    source: SOURCE,
    reach: Reach::Buffers,
    aggregates: false,
    fits: few,
    parts: whole,
    build: all_gather,
    cost: |spec| cost(spec, spec.count() * (spec.count() - 1)),
};

/// Reduce-scatter: everyone reduces its share from all inputs.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::ReduceScatter,
    about: "everyone reduces its share from all inputs: nothing is staged",
    source: SOURCE,
    reach: Reach::Buffers,
    aggregates: false,
    fits: few,
    parts: whole,
    build: reduce_scatter,
    cost: |spec| cost(spec, spec.count() * (spec.count() - 1)),
};

/// Broadcast: everyone reads the root's input.
pub const BROADCAST: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::Broadcast,
    about: "everyone reads the root's input: nothing is staged",
    source: SOURCE,
    reach: Reach::Buffers,
    aggregates: false,
    fits: few,
    parts: whole,
    build: broadcast,
    cost: |spec| cost(spec, spec.count() - 1),
};

/// Broadcast by the root: it alone knows where its input is.
pub const BROADCAST_PUSHED: Algorithm = Algorithm {
    name: "push",
    collective: Collective::Broadcast,
    about: "the root writes its input into all outputs: nothing is staged, and the input may lie anywhere",
    source: SOURCE,
    reach: Reach::Buffers,
    aggregates: false,
    fits: few,
    parts: whole,
    build: broadcast_pushed,
    cost: |spec| cost(spec, spec.count() - 1),
};

/// All-reduce of outputs: whoever knows a factor applies it.
pub const ALL_REDUCE_SCALED: Algorithm = Algorithm {
    name: "scaled",
    collective: Collective::AllReduce,
    about: "everyone brings its input into its output, then reduces its chunk of all outputs: for factors of one's own",
    source: SOURCE,
    reach: Reach::Buffers,
    aggregates: false,
    fits: few,
    parts: one_per_rank,
    build: all_reduce_scaled,
    cost: |spec| cost(spec, 2 * spec.count() * (spec.count() - 1)),
};

/// One pass over memory takes so many operands; with more ranks on a host, staging is no loss.
fn few(spec: &Spec) -> bool {
    spec.ranks <= 64
}

fn cost(spec: &Spec, blocks: u64) -> Cost {
    Cost { steps: if spec.ranks > 1 { 2 } else { 0 }, blocks, scratch: 0 }
}

/// A program of `body` between the two rounds of signals.
fn between(spec: &Spec, rank: Rank, body: impl FnOnce(&mut ProgramBuilder)) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    meet(&mut builder, spec, rank, 1);
    body(&mut builder);
    meet(&mut builder, spec, rank, 2);
    builder.finish(0, 0)
}

fn all_reduce(spec: &Spec, rank: Rank) -> Program {
    between(spec, rank, |builder| {
        reduce_all(builder, spec, input(rank), output(rank));
        tell_all(builder, spec, rank);
    })
}

fn all_reduce_scaled(spec: &Spec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return alone(rank, spec.ranks);
    }
    let mut builder = ProgramBuilder::new(rank);
    for part in 0..spec.ranks {
        builder.copy(input(part), output(part));
    }
    meet(&mut builder, spec, rank, 1);
    reduce_all(&mut builder, spec, output(rank), output(rank));
    tell_all(&mut builder, spec, rank);
    meet(&mut builder, spec, rank, 2);
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &Spec, rank: Rank) -> Program {
    between(spec, rank, |builder| reduce_all(builder, spec, input(rank), output(0)))
}

/// Reduces the blocks that all ranks have at `from`.
fn reduce_all(builder: &mut ProgramBuilder, spec: &Spec, from: Block, into: Block) {
    let operands: Vec<Place> = (0..spec.ranks).map(|rank| at(rank, from)).collect();
    builder.reduce(operands, into, true);
}

/// Writes a result into the outputs of all others.
fn tell_all(builder: &mut ProgramBuilder, spec: &Spec, rank: Rank) {
    for peer in spec.peers(rank) {
        builder.put(output(rank), peer, output(rank));
    }
}

fn all_gather(spec: &Spec, rank: Rank) -> Program {
    between(spec, rank, |builder| {
        builder.copy(input(0), output(rank));
        for peer in spec.peers(rank) {
            builder.put(input(0), peer, output(rank));
        }
    })
}

fn broadcast(spec: &Spec, rank: Rank) -> Program {
    between(spec, rank, |builder| {
        builder.get(spec.root, input(0), output(0));
    })
}

fn broadcast_pushed(spec: &Spec, rank: Rank) -> Program {
    between(spec, rank, |builder| {
        if rank == spec.root {
            builder.copy(input(0), output(0));
            for peer in spec.peers(rank) {
                builder.put(input(0), peer, output(0));
            }
        }
    })
}
