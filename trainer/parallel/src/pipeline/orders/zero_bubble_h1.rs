//! 1F1B that computes the gradients of weights later, in time that would be idle.

use super::one_forward_one_backward::warmup;
use super::{Order, alternate, passes};
use crate::pipeline::{Op, Placement, Schedule, StageCosts};

pub(super) const ORDER: Order = Order {
    name: "zb-h1",
    summary: "1f1b with the gradients of weights in idle time: a third of the idle time, equal peak memory",
    source: "Qi et al., \"Zero bubble pipeline parallelism\", ICLR 2024 (ZB-H1)",
    placement: Placement::Looped,
    chunks: 1..=1,
    whole_rounds: false,
    build,
    bubble,
    activations: |schedule, _| schedule.micro_batches.min(schedule.ranks + schedule.micro_sequences - 1),
};

/// Rank `r` holds `r` micro-batches fewer than rank 0 between forward and backward, and lets the
/// gradients of their weights wait instead.
fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let (forwards, backwards) = passes(schedule);
    let weights = |number| Op::BackwardWeights { micro: schedule.backward_micro(number), chunk: 0 };
    let (mut row, mut number) = (Vec::new(), 0_usize);
    for op in alternate(forwards, backwards, warmup(schedule, rank)) {
        match op {
            Op::Backward { micro, chunk } => {
                row.push(Op::BackwardInput { micro, chunk });
                row.extend(number.checked_sub(rank).map(weights));
                number += 1;
            }
            forward => row.push(forward),
        }
    }
    row.extend((number.saturating_sub(rank)..number).map(weights));
    row
}

/// Ranks wait for (P−1)(F+I−W), if the gradients of weights take no longer than other passes.
fn bubble(schedule: &Schedule, costs: &StageCosts) -> Option<f64> {
    let &StageCosts { forward, backward_input, backward_weights, .. } = costs;
    let shortest = backward_weights <= forward.min(backward_input);
    let waits = (schedule.ranks - 1) as f64 * (forward + backward_input - backward_weights);
    let works = schedule.micro_batches as f64 * (forward + backward_input + backward_weights);
    // With fewer forward passes, a rank has none left to run before its first gradient comes back.
    let fills = schedule.micro_batches > warmup(schedule, 0);
    (shortest && fills).then(|| waits / (works + waits))
}
