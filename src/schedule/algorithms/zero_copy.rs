//! Collectives in symmetric memory, in which a rank reads and writes the buffers of its peers in
//! place.
//!
//! Each input is read once and each output is written once, so no algorithm moves fewer bytes.
//! There is no all-to-all, because in place each rank would overwrite data that its peers have yet
//! to read.
//!
//! Two variants access only outputs of peers. They are needed because a rank cannot know where the
//! root of a broadcast has its input, or by which factor a peer multiplies its elements before they
//! are summed.
//!
//! A first round of signals says that inputs are there and outputs may be written. A second round
//! says that everything was read and written. The algorithms are used for large shares whose
//! buffers are in the symmetric heap on all ranks.
//!
//! Source: direct algorithms on registered memory, as in Shah et al., "MSCCL++: Rethinking GPU
//! communication abstractions", 2025, and NCCL 2.27's symmetric memory kernels.

use super::{one_chunk, one_per_rank, single_rank};
use crate::schedule::algorithms::window_direct::signal_and_wait_all;
use crate::schedule::{
    Algorithm, Chunk, ChunkRef, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program,
    ProgramBuilder, Rank, chunk_at, input, output,
};

const NAME: &str = "zero_copy";
const SOURCE: &str = "Shah et al.: MSCCL++, 2025; symmetric memory in NCCL 2.27";

/// All-reduce: every rank reduces its chunk from all inputs into all outputs.
pub const ALL_REDUCE: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::AllReduce,
    summary: "every rank reduces its chunk from all inputs into all outputs: nothing is staged",
    citation: SOURCE,
    peer_access: PeerAccess::ZeroCopy,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &fits_one_reduce,
    chunks_per_share: &one_per_rank,
    build: &all_reduce,
    complexity: Some(&|spec| complexity(spec, 2 * spec.size() * (spec.size() - 1))),
};

/// All-gather: every rank writes its input into all outputs.
pub const ALL_GATHER: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::AllGather,
    summary: "every rank writes its input into all outputs: nothing is staged",
    citation: SOURCE,
    peer_access: PeerAccess::ZeroCopy,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &fits_one_reduce,
    chunks_per_share: &one_chunk,
    build: &all_gather,
    complexity: Some(&|spec| complexity(spec, spec.size() * (spec.size() - 1))),
};

/// Reduce-scatter: every rank reduces its share from all inputs.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::ReduceScatter,
    summary: "every rank reduces its share from all inputs: nothing is staged",
    citation: SOURCE,
    peer_access: PeerAccess::ZeroCopy,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &fits_one_reduce,
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| complexity(spec, spec.size() * (spec.size() - 1))),
};

/// Broadcast: every rank reads the input of the root.
pub const BROADCAST: Algorithm = Algorithm {
    name: NAME,
    collective: Collective::Broadcast,
    summary: "every rank reads the root's input: nothing is staged",
    citation: SOURCE,
    peer_access: PeerAccess::ZeroCopy,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &fits_one_reduce,
    chunks_per_share: &one_chunk,
    build: &broadcast,
    complexity: Some(&|spec| complexity(spec, spec.size() - 1)),
};

/// Broadcast in which the root writes all outputs, because only the root knows where its input is.
pub const BROADCAST_PUSH: Algorithm = Algorithm {
    name: "zero_copy_push",
    collective: Collective::Broadcast,
    summary: "the root writes its input into all outputs: nothing is staged, and the input may be anywhere",
    citation: SOURCE,
    peer_access: PeerAccess::ZeroCopy,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: &fits_one_reduce,
    chunks_per_share: &one_chunk,
    build: &broadcast_push,
    complexity: Some(&|spec| complexity(spec, spec.size() - 1)),
};

/// All-reduce among outputs: each rank applies its own factor first.
pub const ALL_REDUCE_SCALED: Algorithm = Algorithm {
    name: "zero_copy_scaled",
    collective: Collective::AllReduce,
    summary: "every rank copies its input into its output, then reduces its chunk of all outputs: for factors a rank",
    citation: SOURCE,
    peer_access: PeerAccess::ZeroCopy,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &fits_one_reduce,
    chunks_per_share: &one_per_rank,
    build: &all_reduce_scaled,
    complexity: Some(&|spec| complexity(spec, 2 * spec.size() * (spec.size() - 1))),
};

/// Returns true if one pass over memory can combine all operands. With more ranks on a host,
/// staging is as fast.
fn fits_one_reduce(spec: &GroupSpec) -> bool {
    spec.ranks <= 64
}

fn complexity(spec: &GroupSpec, chunks: u64) -> Complexity {
    Complexity { steps: if spec.ranks > 1 { 2 } else { 0 }, chunks, scratch_chunks: 0 }
}

/// Makes the program of `body` between the two rounds of signals.
fn between_barriers(spec: &GroupSpec, rank: Rank, body: impl FnOnce(&mut ProgramBuilder)) -> Program {
    let mut builder = ProgramBuilder::new(rank);
    signal_and_wait_all(&mut builder, spec, rank, 1);
    body(&mut builder);
    signal_and_wait_all(&mut builder, spec, rank, 2);
    builder.finish(0, 0)
}

fn all_reduce(spec: &GroupSpec, rank: Rank) -> Program {
    between_barriers(spec, rank, |builder| {
        reduce_all(builder, spec, input(rank), output(rank));
        put_to_all(builder, spec, rank);
    })
}

fn all_reduce_scaled(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, spec.ranks);
    }
    let mut builder = ProgramBuilder::new(rank);
    for part in 0..spec.ranks {
        // Only this rank knows its factor. The copy applies it, and peers read the outputs after
        // the signal.
        builder.copy(input(part), output(part));
    }
    signal_and_wait_all(&mut builder, spec, rank, 1);
    reduce_all(&mut builder, spec, output(rank), output(rank));
    put_to_all(&mut builder, spec, rank);
    signal_and_wait_all(&mut builder, spec, rank, 2);
    builder.finish(0, 0)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    between_barriers(spec, rank, |builder| reduce_all(builder, spec, input(rank), output(0)))
}

/// Reduces the chunks that all ranks have at `operand`.
fn reduce_all(builder: &mut ProgramBuilder, spec: &GroupSpec, operand: Chunk, target: Chunk) {
    let operands: Vec<ChunkRef> = (0..spec.ranks).map(|rank| chunk_at(rank, operand)).collect();
    builder.reduce(operands, target, true);
}

/// Writes a result into the outputs of all others.
fn put_to_all(builder: &mut ProgramBuilder, spec: &GroupSpec, rank: Rank) {
    for peer in spec.peers(rank) {
        builder.put(output(rank), peer, output(rank));
    }
}

fn all_gather(spec: &GroupSpec, rank: Rank) -> Program {
    between_barriers(spec, rank, |builder| {
        builder.copy(input(0), output(rank));
        for peer in spec.peers(rank) {
            builder.put(input(0), peer, output(rank));
        }
    })
}

fn broadcast(spec: &GroupSpec, rank: Rank) -> Program {
    between_barriers(spec, rank, |builder| {
        builder.get(spec.root, input(0), output(0));
    })
}

fn broadcast_push(spec: &GroupSpec, rank: Rank) -> Program {
    between_barriers(spec, rank, |builder| {
        if rank == spec.root {
            builder.copy(input(0), output(0));
            for peer in spec.peers(rank) {
                builder.put(input(0), peer, output(0));
            }
        }
    })
}
