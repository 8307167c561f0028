//! 1F1B over several chunks per rank, in rounds of as many micro-batches as ranks.

use super::{Order, alternate, fill_and_drain};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "interleaved",
    summary: "1f1b over several chunks per rank: shorter idle time, more messages and activations",
    source: "Narayanan et al., \"Efficient large-scale language model training on GPU clusters using \
             Megatron-LM\", SC 2021",
    placement: Placement::Looped,
    chunks: 2..=usize::MAX,
    whole_rounds: true,
    micro_sequences: false,
    build,
    bubble: fill_and_drain,
    activations,
};

fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let &Schedule { ranks, micro_batches, chunks, .. } = schedule;
    // A round takes one micro-batch per rank through all chunks, chunk after chunk.
    let pass = |number: usize| {
        let (round, part) = (number / (ranks * chunks), number % (ranks * chunks));
        (round * ranks + part % ranks, part / ranks)
    };
    let forward = |(micro, chunk)| Op::Forward { micro, chunk };
    let backward = |(micro, chunk)| Op::Backward { micro, chunk: chunks - 1 - chunk };
    let passes = 0..micro_batches * chunks;
    let forwards = passes.clone().map(pass).map(forward).collect();
    let backwards = passes.map(pass).map(backward).collect();
    alternate(forwards, backwards, warmup(schedule, rank))
}

/// Two forward passes per rank that follows, after a round through all chunks but the last.
fn warmup(schedule: &Schedule, rank: usize) -> usize {
    2 * (schedule.ranks - 1 - rank) + (schedule.chunks - 1) * schedule.ranks
}

fn activations(schedule: &Schedule, rank: usize) -> usize {
    (schedule.chunks * schedule.micro_batches).min(warmup(schedule, rank) + 1)
}
