//! All forward passes, then all backward passes.

use super::{Order, alternate, fill_and_drain, passes};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "gpipe",
    summary: "all forward passes, then all backward passes: activations of all micro-batches",
    source: "Huang et al., \"GPipe\", NeurIPS 2019",
    placement: Placement::Looped,
    chunks: 1..=1,
    whole_rounds: false,
    build,
    bubble: fill_and_drain,
    activations: |schedule, _| schedule.micro_batches,
};

fn build(schedule: &Schedule, _rank: usize) -> Vec<Op> {
    let (forwards, backwards) = passes(schedule);
    alternate(forwards, backwards, schedule.micro_batches)
}
