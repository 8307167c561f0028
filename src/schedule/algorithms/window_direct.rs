//! Collectives over windows that only move data.
//!
//! Each rank writes the data that others need into its own window and signals. The other ranks read
//! the data from there, so every byte is copied twice. The algorithms are used between ranks that
//! share memory.
//!
//! Source: shared-memory collectives as in Graham and Shipman, "MPI support for multi-core
//! architectures: optimized shared memory collectives", EuroPVM/MPI 2008.

use crate::schedule::algorithms::{any_group, one_chunk};
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder,
    Rank, input, output, window,
};

pub(super) const SOURCE: &str = "Graham, Shipman: Optimized shared memory collectives, EuroPVM/MPI 2008";

/// All-gather from windows.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::AllGather,
    summary: "every rank reads all windows: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_gather,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() * (spec.size() - 1))),
};

/// Broadcast from the root's window.
pub const BROADCAST: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::Broadcast,
    summary: "every rank reads the root's window: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &broadcast,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() - 1)),
};

/// Gather from windows.
pub const GATHER: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::Gather,
    summary: "the root reads all windows: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &gather,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() - 1)),
};

/// Scatter from the root's window.
pub const SCATTER: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::Scatter,
    summary: "every rank reads its chunk in the root's window: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &scatter,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() - 1)),
};

/// All-to-all from windows.
pub const ALL_TO_ALL: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::AllToAll,
    summary: "every rank reads its chunk in all windows: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &all_to_all,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() * (spec.size() - 1))),
};

/// Barrier by one signal of every rank.
pub const BARRIER: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::Barrier,
    summary: "every rank signals and waits for all signals: one hand-over",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &barrier,
    complexity: Some(&|spec| one_exchange_complexity(spec, 0)),
};

/// The cost of one signal and of `chunks` chunks read from windows after it.
pub(super) fn one_exchange_complexity(spec: &GroupSpec, chunks: u64) -> Complexity {
    Complexity { steps: u64::from(spec.ranks > 1), chunks, scratch_chunks: 0 }
}

/// Returns the place of the chunk of `peer` in the window of `owner`. A chunk for the owner itself
/// would come last.
pub(super) const fn staged(spec: &GroupSpec, owner: Rank, peer: Rank) -> Chunk {
    window(spec.prev_by(peer, (owner + 1) % spec.ranks))
}

/// Writes the chunk of every peer into the own window, and signals.
pub(super) fn stage_all(builder: &mut ProgramBuilder, spec: &GroupSpec, rank: Rank) {
    for peer in spec.peers(rank) {
        builder.copy(input(peer), staged(spec, rank, peer));
    }
    builder.signal();
}

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
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

fn broadcast(spec: &GroupSpec, rank: Rank) -> Program {
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

fn gather(spec: &GroupSpec, rank: Rank) -> Program {
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

fn scatter(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.wait(spec.root, 1).get(spec.root, staged(spec, spec.root, rank), output(0));
        return builder.finish(0, 0);
    }
    if spec.ranks > 1 {
        stage_all(&mut builder, spec, rank);
    }
    builder.copy(input(rank), output(0));
    builder.finish(0, spec.ranks - 1)
}

fn all_to_all(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    if spec.ranks > 1 {
        stage_all(&mut builder, spec, rank);
    }
    builder.copy(input(rank), output(rank));
    for peer in spec.peers(rank) {
        builder.wait(peer, 1).get(peer, staged(spec, peer, rank), output(peer));
    }
    builder.finish(0, spec.ranks - 1)
}

fn barrier(spec: &GroupSpec, rank: Rank) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    signal_and_wait_all(&mut builder, spec, rank, 1);
    builder.finish(0, 0)
}

/// Signals, and waits until all ranks have signaled `signals` times.
pub(super) fn signal_and_wait_all(builder: &mut ProgramBuilder, spec: &GroupSpec, rank: Rank, signals: u32) {
    if spec.ranks > 1 {
        builder.signal();
    }
    for peer in spec.peers(rank) {
        builder.wait(peer, signals);
    }
}
