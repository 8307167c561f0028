//! 1F1B that computes the gradients of weights later, in time that would be idle.

use super::{Order, alternate, passes};
use crate::pipeline::{Op, Placement, Schedule, StageCosts};

pub(super) const ORDER: Order = Order {
    name: "zb-h1",
    summary: "1f1b with the gradients of weights in idle time: a third of the idle time, equal peak memory",
    source: "Qi et al., \"Zero bubble pipeline parallelism\", ICLR 2024 (ZB-H1)",
    placement: Placement::Looped,
    chunks: 1..=1,
    whole_rounds: false,
    micro_sequences: false,
    build,
    bubble,
    activations: |schedule, _| schedule.micro_batches.min(schedule.ranks),
};

/// Rank `r` holds `r` micro-batches fewer than rank 0 between forward and backward, and lets the
/// gradients of their weights wait instead.
fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let (forwards, backwards) = passes(schedule);
    let weights = |micro| Op::BackwardWeights { micro, chunk: 0 };
    let mut row = Vec::new();
    for op in alternate(forwards, backwards, schedule.ranks - 1 - rank) {
        match op {
            Op::Backward { micro, chunk } => {
                row.push(Op::BackwardInput { micro, chunk });
                row.extend(micro.checked_sub(rank).map(weights));
            }
            forward => row.push(forward),
        }
    }
    row.extend((schedule.micro_batches.saturating_sub(rank)..schedule.micro_batches).map(weights));
    row
}

/// Ranks wait for (P−1)(F+I−W), if the gradients of weights take no longer than other passes.
fn bubble(schedule: &Schedule, costs: &StageCosts) -> Option<f64> {
    let &StageCosts { forward, backward_input, backward_weights, .. } = costs;
    let shortest = backward_weights <= forward.min(backward_input);
    let waits = (schedule.ranks - 1) as f64 * (forward + backward_input - backward_weights);
    let works = schedule.micro_batches as f64 * (forward + backward_input + backward_weights);
    (shortest && schedule.micro_batches >= schedule.ranks).then(|| waits / (works + waits))
}
