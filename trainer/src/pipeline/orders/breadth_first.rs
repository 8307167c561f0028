//! All micro-batches through one chunk, then through the next.

use super::{Order, alternate};
use crate::pipeline::{Op, Placement, Schedule};

pub(super) const ORDER: Order = Order {
    name: "breadth-first",
    summary: "all micro-batches through one chunk, then the next: each chunk's weights are needed once per way",
    source: "Lamy-Poirier, \"Breadth-first pipeline parallelism\", MLSys 2023",
    placement: Placement::Looped,
    chunks: 1..=usize::MAX,
    whole_rounds: false,
    build,
};

fn build(schedule: &Schedule, _rank: usize) -> Vec<Op> {
    let &Schedule { micro_batches, chunks, .. } = schedule;
    let pass = |number: usize| (number % micro_batches, number / micro_batches);
    let forward = |(micro, chunk)| Op::Forward { micro, chunk };
    let backward = |(micro, chunk)| Op::Backward { micro, chunk: chunks - 1 - chunk };
    let passes = 0..micro_batches * chunks;
    let forwards = passes.clone().map(pass).map(forward).collect();
    let backwards = passes.clone().map(pass).map(backward).collect();
    alternate(forwards, backwards, passes.end)
}
