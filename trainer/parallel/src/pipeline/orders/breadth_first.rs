//! All micro-batches through one chunk, then through the next.

use super::{Order, alternate, fill_and_drain};
use crate::pipeline::{Op, Placement, Schedule, StageCosts};

pub(super) const ORDER: Order = Order {
    name: "breadth-first",
    summary: "all micro-batches through one chunk, then the next: each chunk's weights are needed once per way",
    source: "Lamy-Poirier, \"Breadth-first pipeline parallelism\", MLSys 2023",
    placement: Placement::Looped,
    chunks: 1..=usize::MAX,
    whole_rounds: false,
    build,
    bubble,
    activations: |schedule, _| schedule.chunks * schedule.micro_batches,
};

fn build(schedule: &Schedule, _rank: usize) -> Vec<Op> {
    let &Schedule { micro_batches, chunks, .. } = schedule;
    let pass = |number: usize| (number % micro_batches, number / micro_batches);
    let forward = |(micro, chunk)| Op::Forward { micro, chunk };
    let backward =
        |(number, chunk)| Op::Backward { micro: schedule.backward_micro(number), chunk: chunks - 1 - chunk };
    let passes = 0..micro_batches * chunks;
    let forwards = passes.clone().map(pass).map(forward).collect();
    let backwards = passes.clone().map(pass).map(backward).collect();
    alternate(forwards, backwards, passes.end)
}

/// The formula needs a micro-batch per rank: the next chunk waits for the first otherwise.
fn bubble(schedule: &Schedule, costs: &StageCosts) -> Option<f64> {
    let fills = schedule.micro_batches >= schedule.ranks || schedule.chunks == 1;
    fills.then(|| fill_and_drain(schedule, costs)).flatten()
}
