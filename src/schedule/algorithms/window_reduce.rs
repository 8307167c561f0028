//! Reductions over windows.
//!
//! Every rank writes its operands into its own window. Operands are read in place, in one pass and
//! in rank order, so every rank's result is the same expression. In one shot, every rank reduces
//! everything. In two shots, every rank reduces one chunk and reads the other results. The
//! algorithms are used between ranks that share memory.
//!
//! Source: all-pairs all-reduce, in one step or two, as in Cowan, Maleki, Musuvathi, Saarikivi,
//! Xiong, "MSCCLang: Microsoft collective communication language", ASPLOS 2023; windows as in
//! Graham and Shipman, EuroPVM/MPI 2008.

use crate::schedule::algorithms::window_direct::{SOURCE, one_exchange_complexity, stage_all, staged};
use crate::schedule::algorithms::{any_group, one_chunk, one_per_rank, single_rank};
use crate::schedule::{
    Algorithm, Chunk, ChunkRef, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program,
    ProgramBuilder, Rank, chunk_at, input, output, window,
};

const MSCCLANG: &str = "Cowan, Maleki, Musuvathi, Saarikivi, Xiong: MSCCLang, ASPLOS 2023";

/// All-reduce in which every rank reduces everything.
pub const ONE_SHOT: Algorithm = Algorithm {
    name: "oneshot",
    collective: Collective::AllReduce,
    summary: "every rank reads all windows and reduces for itself: one hand-over, for small data",
    citation: MSCCLANG,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &one_shot,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() * (spec.size() - 1))),
};

/// All-reduce in which every rank reduces its chunk and reads the other results.
pub const TWO_SHOT: Algorithm = Algorithm {
    name: "twoshot",
    collective: Collective::AllReduce,
    summary: "every rank reduces one chunk and reads the results of others: fewest bytes, two hand-overs",
    citation: MSCCLANG,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_per_rank,
    build: &two_shot,
    complexity: Some(&|spec| Complexity {
        steps: if spec.ranks > 1 { 2 } else { 0 },
        chunks: 2 * spec.size() * (spec.size() - 1),
        scratch_chunks: 0,
    }),
};

/// Reduce-scatter from windows.
pub const REDUCE_SCATTER: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::ReduceScatter,
    summary: "every rank reduces its chunk from all windows: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce_scatter,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() * (spec.size() - 1))),
};

/// Reduce from windows.
pub const REDUCE: Algorithm = Algorithm {
    name: "window_direct",
    collective: Collective::Reduce,
    summary: "the root reduces from all windows: one hand-over, no message in between",
    citation: SOURCE,
    peer_access: PeerAccess::Window,
    combine_order: CombineOrder::SinglePass,
    aggregates: false,
    supports: &any_group,
    chunks_per_share: &one_chunk,
    build: &reduce,
    complexity: Some(&|spec| one_exchange_complexity(spec, spec.size() - 1)),
};

/// Waits for all peers, then reduces `own_chunk` and the operand of each peer, in rank order.
fn reduce_all(
    builder: &mut ProgramBuilder,
    spec: &GroupSpec,
    rank: Rank,
    own_chunk: Chunk,
    theirs: impl Fn(Rank) -> Chunk,
    target: Chunk,
) {
    for peer in spec.peers(rank) {
        builder.wait(peer, 1);
    }
    let operand = |source| if source == rank { own_chunk } else { theirs(source) };
    let operands: Vec<ChunkRef> = (0..spec.ranks).map(|source| chunk_at(source, operand(source))).collect();
    builder.reduce(operands, target, true);
}

fn one_shot(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    builder.copy(input(0), window(0)).signal();
    reduce_all(&mut builder, spec, rank, input(0), |_| window(0), output(0));
    builder.finish(0, 1)
}

fn two_shot(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    stage_all(&mut builder, spec, rank);
    let result = |owner| staged(spec, owner, owner);
    reduce_all(&mut builder, spec, rank, input(rank), |peer| staged(spec, peer, rank), result(rank));
    builder.signal().copy(result(rank), output(rank));
    for peer in spec.peers(rank) {
        builder.wait(peer, 2).get(peer, result(peer), output(peer));
    }
    builder.finish(0, spec.ranks)
}

fn reduce_scatter(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    stage_all(&mut builder, spec, rank);
    reduce_all(&mut builder, spec, rank, input(rank), |peer| staged(spec, peer, rank), output(0));
    builder.finish(0, spec.ranks - 1)
}

fn reduce(spec: &GroupSpec, rank: Rank) -> Program {
    if spec.ranks == 1 {
        return single_rank(rank, 1);
    }
    let mut builder = ProgramBuilder::new(rank);
    if rank != spec.root {
        builder.copy(input(0), window(0)).signal();
        return builder.finish(0, 1);
    }
    reduce_all(&mut builder, spec, rank, input(0), |_| window(0), output(0));
    builder.finish(0, 0)
}
