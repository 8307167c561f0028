//! Collectives over windows that only move data: each rank lays out what
//! others want in its own window and signals; the others get it from there.
//!
//! Source: shared-memory collectives as in Graham and Shipman, "MPI support
//! for multi-core architectures: optimized shared memory collectives",
//! EuroPVM/MPI 2008.

use super::{any, whole};
use crate::schedule::{
    Algorithm, Block, Collective, Cost, Program, ProgramBuilder, Rank, Reach, Spec, input, output, window,
};

pub(super) const SOURCE: &str = "Graham, Shipman: Optimized shared memory collectives, EuroPVM/MPI 2008";

/// All-gather from windows.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::AllGather,
    about: "everyone reads everyone's window: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_gather,
    cost: |spec| hand_over(spec, spec.count() * (spec.count() - 1)),
};

/// Broadcast from the root's window.
pub const BROADCAST: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::Broadcast,
    about: "everyone reads the root's window: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: broadcast,
    cost: |spec| hand_over(spec, spec.count() - 1),
};

/// Gather from windows.
pub const GATHER: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::Gather,
    about: "the root reads everyone's window: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: gather,
    cost: |spec| hand_over(spec, spec.count() - 1),
};

/// Scatter from the root's window.
pub const SCATTER: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::Scatter,
    about: "everyone reads its chunk in the root's window: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: scatter,
    cost: |spec| hand_over(spec, spec.count() - 1),
};

/// All-to-all from windows.
pub const ALL_TO_ALL: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::AllToAll,
    about: "everyone reads its chunk in everyone's window: one hand-over, no message in between",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: all_to_all,
    cost: |spec| hand_over(spec, spec.count() * (spec.count() - 1)),
};

/// Barrier by signals.
pub const BARRIER: Algorithm = Algorithm {
    name: "direct",
    collective: Collective::Barrier,
    about: "everyone signals and waits for everyone's signal: one hand-over",
    source: SOURCE,
    reach: Reach::Windows,
    aggregates: false,
    fits: any,
    parts: whole,
    build: barrier,
    cost: |spec| hand_over(spec, 0),
};

/// The cost of one signal that everything waits for, and `blocks` read from windows.
pub(super) fn hand_over(spec: &Spec, blocks: u64) -> Cost {
    Cost { steps: u64::from(spec.ranks > 1), blocks, scratch: 0 }
}

/// Where in its window `owner` lays the chunk of `peer`. Its own would come last, after all others.
pub(super) const fn laid(spec: &Spec, owner: Rank, peer: Rank) -> Block {
    window(spec.before(peer, (owner + 1) % spec.ranks))
}

/// Lays out the chunk of every peer in the own window, and says so.
pub(super) fn lay_out(builder: &mut ProgramBuilder, spec: &Spec, rank: Rank) {
    for peer in spec.peers(rank) {
        builder.copy(input(peer), laid(spec, rank, peer));
    }
    builder.signal();
}

fn all_gather(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if spec.ranks > 1 {
        builder.copy(input(0), window(0)).signal();
    }
    builder.copy(input(0), output(rank));
    for peer in spec.peers(rank) {
        builder.wait(peer, 1).get(peer, window(0), output(peer));
    }
    builder.finish(0, usize::from(spec.ranks > 1))
}

fn broadcast(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.wait(spec.root, 1).get(spec.root, window(0), output(0));
        return builder.finish(0, 0);
    }
    if spec.ranks > 1 {
        builder.copy(input(0), window(0)).signal();
    }
    builder.copy(input(0), output(0));
    builder.finish(0, usize::from(spec.ranks > 1))
}

fn gather(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.copy(input(0), window(0)).signal();
        return builder.finish(0, 1);
    }
    builder.copy(input(0), output(rank));
    for peer in spec.peers(rank) {
        builder.wait(peer, 1).get(peer, window(0), output(peer));
    }
    builder.finish(0, 0)
}

fn scatter(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.wait(spec.root, 1).get(spec.root, laid(spec, spec.root, rank), output(0));
        return builder.finish(0, 0);
    }
    if spec.ranks > 1 {
        lay_out(&mut builder, spec, rank);
    }
    builder.copy(input(rank), output(0));
    builder.finish(0, spec.ranks - 1)
}

fn all_to_all(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if spec.ranks > 1 {
        lay_out(&mut builder, spec, rank);
    }
    builder.copy(input(rank), output(rank));
    for peer in spec.peers(rank) {
        builder.wait(peer, 1).get(peer, laid(spec, peer, rank), output(peer));
    }
    builder.finish(0, spec.ranks - 1)
}

fn barrier(spec: &Spec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    meet(&mut builder, spec, rank, 1);
    builder.finish(0, 0)
}

/// Everyone gives a signal and waits for everyone's; it is the `signals`-th.
pub(super) fn meet(builder: &mut ProgramBuilder, spec: &Spec, rank: Rank, signals: u32) {
    if spec.ranks > 1 {
        builder.signal();
    }
    for peer in spec.peers(rank) {
        builder.wait(peer, signals);
    }
}
