//! One forward and one backward pass in turn.

use super::{Order, alternate, fill_and_drain, passes};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "1f1b",
    summary: "one forward and one backward in turn: idle as gpipe, activations of as many as stages follow",
    source: "Narayanan et al., \"PipeDream\", SOSP 2019; with a flush: Narayanan et al., \"Memory-efficient \
             pipeline-parallel DNN training\", ICML 2021; micro-sequences: Sun et al., \"Seq1F1B\", 2024",
    placement: Placement::Looped,
    chunks: 1..=1,
    whole_rounds: false,
    build,
    bubble: fill_and_drain,
    activations: |schedule, rank| schedule.micro_batches.min(warmup(schedule, rank) + 1),
};

fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let (forwards, backwards) = passes(schedule);
    alternate(forwards, backwards, warmup(schedule, rank))
}

/// Returns one forward pass per rank that follows. The last micro-sequence of a micro-batch goes
/// back first, and needs all of them.
pub(super) fn warmup(schedule: &Schedule, rank: usize) -> usize {
    schedule.ranks - 1 - rank + schedule.micro_sequences - 1
}
