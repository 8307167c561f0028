//! Two chunks per rank in the shape of a V, with backward passes in two halves.

use super::Order;
use crate::pipeline::{Op, Placement, Schedule, StageCosts};

pub(super) const ORDER: Order = Order {
    name: "zb-v",
    summary: "stages down the ranks and back up, backward in two halves: no rank waits between its passes",
    source: "Qi et al., \"Zero bubble pipeline parallelism\", ICLR 2024 (ZB-V); Qi et al., \"Pipeline \
             parallelism with controllable memory\", NeurIPS 2024 (V-ZB)",
    placement: Placement::V,
    chunks: 2..=2,
    whole_rounds: false,
    build,
    bubble,
    activations: |schedule, _| 2 * schedule.micro_batches.min(schedule.ranks + schedule.micro_sequences - 1),
};

/// A rank warms up until it has `2 * ranks` micro-batches in its chunks. Then each forward follows
/// a backward of the same chunk, and the gradients of weights fill the time that is left.
fn build(schedule: &Schedule, rank: usize) -> Vec<Op> {
    let &Schedule { ranks, micro_batches, micro_sequences, .. } = schedule;
    // Fewer micro-batches are the pattern without those that there are not.
    let count = micro_batches.max(2 * ranks - 1).next_multiple_of(micro_sequences);
    let mut row = Row { schedule, all: count, counts: [0; 6], ops: Vec::new() };
    row.repeat(2 * (ranks - rank) - 1, "f");
    // The last micro-sequence of a micro-batch goes back first, so all of them go forward before.
    row.repeat(rank + micro_sequences - 1, "Ff");
    row.repeat(ranks - rank, "FIW");
    row.repeat(count - ranks, "fiwFIW");
    row.repeat(rank, "iI");
    row.repeat(ranks - rank, "iw");
    row.repeat(count, "W");
    row.repeat(count, "w");
    row.ops.retain(|op| op.place().is_some_and(|(micro, _)| micro < micro_batches));
    row.ops
}

/// No rank waits once it has started if all passes take equal times. The last rank starts after P−1
/// forward passes, which makes the idle share (P−1)/(6M+P−1).
fn bubble(schedule: &Schedule, costs: &StageCosts) -> Option<f64> {
    let equal = costs.forward == costs.backward_input && costs.forward == costs.backward_weights;
    let waits = (schedule.ranks - 1) as f64;
    let fills = schedule.micro_batches + 1 >= 2 * schedule.ranks - 1 + schedule.micro_sequences;
    (equal && fills).then(|| waits / (6.0 * schedule.micro_batches as f64 + waits))
}

/// Row under construction: the next micro-batch of each pass.
struct Row<'s> {
    schedule: &'s Schedule,
    all: usize,
    counts: [usize; 6],
    ops: Vec<Op>,
}

impl Row<'_> {
    /// Appends passes of the next micro-batches, as long as there are any. Small letters are chunk
    /// 0, capitals chunk 1; F is forward, I and W are the gradients of input and weights.
    fn repeat(&mut self, times: usize, passes: &str) {
        for letter in passes.repeat(times).chars() {
            let index = "fiwFIW".find(letter).expect("a pass");
            let (number, chunk) = (self.counts[index], index / 3);
            if number < self.all {
                self.counts[index] += 1;
                let micro = self.schedule.backward_micro(number);
                self.ops.push(match index % 3 {
                    0 => Op::Forward { micro: number, chunk },
                    1 => Op::BackwardInput { micro, chunk },
                    _ => Op::BackwardWeights { micro, chunk },
                });
            }
        }
    }
}
