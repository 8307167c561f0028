//! One micro-batch at a time through all stages.

use super::{Order, passes};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "naive",
    summary: "one micro-batch at a time through all stages: one rank works, the others wait",
    source: "model parallelism without a pipeline, the baseline of Huang et al. 2019 (figure 2b)",
    placement: Placement::Looped,
    chunks: 1..=1,
    whole_rounds: false,
    build,
    bubble: |schedule, _| (schedule.micro_sequences == 1).then(|| 1.0 - 1.0 / schedule.ranks as f64),
    activations: |schedule, _| schedule.micro_sequences,
};

fn build(schedule: &Schedule, _rank: usize) -> Vec<Op> {
    let (forwards, backwards) = passes(schedule);
    let together = schedule.micro_sequences;
    let rounds = forwards.chunks(together).zip(backwards.chunks(together));
    rounds.flat_map(|(forwards, backwards)| [forwards, backwards].concat()).collect()
}
