//! 1F1B over several chunks per rank, in rounds of as many micro-batches as ranks, or of as many
//! micro-sequences and the rest of their micro-batches.

use super::{Order, alternate, fill_and_drain, round_length};
use crate::pipeline::{Op, Placement, Schedule, StageCosts};

pub(super) const ORDER: Order = Order {
    name: "interleaved",
    summary: "1f1b over several chunks per rank: shorter idle time, more messages and activations",
    source: "Narayanan et al., \"Efficient large-scale language model training on GPU clusters using \
             Megatron-LM\", SC 2021; micro-sequences: Sun et al., \"Seq1F1B\", 2024",
    placement: Placement::Looped,
    chunks: 2..=usize::MAX,
    whole_rounds: true,
    build,
    bubble,
    activations,
};

fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let &Schedule { ranks, micro_batches, micro_sequences, chunks, .. } = schedule;
    // A round goes through all chunks, chunk after chunk.
    let round = round_length(ranks, micro_sequences);
    let pass = |number: usize| {
        let (index, part) = (number / (round * chunks), number % (round * chunks));
        (index * round + part % round, part / round)
    };
    let forward = |(micro, chunk)| Op::Forward { micro, chunk };
    let backward =
        |(number, chunk)| Op::Backward { micro: schedule.backward_micro(number), chunk: chunks - 1 - chunk };
    let passes = 0..micro_batches * chunks;
    let forwards = passes.clone().map(pass).map(forward).collect();
    let backwards = passes.map(pass).map(backward).collect();
    alternate(forwards, backwards, warmup(schedule, rank))
}

/// Two forward passes per rank that follows, after a round through all chunks but the last. The
/// last micro-sequence of a micro-batch goes back first, and needs all of them.
fn warmup(schedule: &Schedule, rank: usize) -> usize {
    let &Schedule { ranks, micro_sequences, chunks, .. } = schedule;
    2 * (ranks - 1 - rank) + (chunks - 1) * round_length(ranks, micro_sequences) + micro_sequences - 1
}

/// The formula needs rounds of as many as ranks. In longer ones, the last rank sends to the next
/// chunk of rank 0 before that rank receives, so that its link is not free for the next message.
fn bubble(schedule: &Schedule, costs: &StageCosts) -> Option<f64> {
    let is_short = round_length(schedule.ranks, schedule.micro_sequences) == schedule.ranks;
    is_short.then(|| fill_and_drain(schedule, costs)).flatten()
}

fn activations(schedule: &Schedule, rank: usize) -> usize {
    (schedule.chunks * schedule.micro_batches).min(warmup(schedule, rank) + 1)
}
