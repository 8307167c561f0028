//! One forward and one backward pass in turn.

use super::{Order, alternate, fill_and_drain, passes};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "1f1b",
    summary: "one forward and one backward in turn: idle as gpipe, activations of as many as stages follow",
    source: "Narayanan et al., \"PipeDream\", SOSP 2019; with a flush: Narayanan et al., \"Memory-efficient \
             pipeline-parallel DNN training\", ICML 2021",
    placement: Placement::Looped,
    chunks: 1..=1,
    whole_rounds: false,
    build,
    bubble: fill_and_drain,
    activations: |schedule, rank| schedule.micro_batches.min(schedule.ranks - rank),
};

fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let (forwards, backwards) = passes(schedule.micro_batches);
    alternate(forwards, backwards, schedule.ranks - 1 - rank)
}
