//! 1F1B over several chunks per rank, in rounds of as many micro-batches as ranks.

use super::{Order, alternate};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "interleaved",
    summary: "1f1b over several chunks per rank: shorter idle time, more messages and activations",
    source: "Narayanan et al., \"Efficient large-scale language model training on GPU clusters using \
             Megatron-LM\", SC 2021",
    placement: Placement::Looped,
    chunks: 2..=usize::MAX,
    whole_rounds: true,
    build,
};

fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let &Schedule { ranks, micro_batches, chunks, .. } = schedule;
    // A round takes one micro-batch per rank through all chunks, chunk after chunk.
    let pass = |number: usize| {
        let (round, within) = (number / (ranks * chunks), number % (ranks * chunks));
        (round * ranks + within % ranks, within / ranks)
    };
    let forward = |(micro, chunk)| Op::Forward { micro, chunk };
    let backward = |(micro, chunk)| Op::Backward { micro, chunk: chunks - 1 - chunk };
    let passes = 0..micro_batches * chunks;
    let forwards = passes.clone().map(pass).map(forward).collect();
    let backwards = passes.map(pass).map(backward).collect();
    alternate(forwards, backwards, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
}
