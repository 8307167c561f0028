//! Tests of orders: golden rows, the check over all small dimensions, and refused numbers.

use super::*;

/// Every schedule of an order with at most 8 ranks, 16 micro-batches and 4 chunks.
fn small(order: &'static Order) -> impl Iterator<Item = Schedule> {
    let dimensions = (1..=8).flat_map(|ranks| (1..=16).map(move |micro_batches| (ranks, micro_batches)));
    let all = dimensions.flat_map(move |(ranks, micro_batches)| {
        (1..=4).map(move |chunks| order.schedule(ranks, micro_batches, chunks))
    });
    all.filter_map(Result::ok)
}

fn schedule(name: &str, ranks: usize, micro_batches: usize) -> Schedule {
    let order = Order::find(name).unwrap();
    order.schedule(ranks, micro_batches, order.usual_chunks()).unwrap()
}

#[test]
fn pipeline_1f1b_has_the_printed_rows() {
    assert_eq!(
        schedule("1f1b", 4, 8).to_string(),
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7\n\
         F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n\
         F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n\
         F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7\n"
    );
}

#[test]
fn small_pipelines_are_complete_and_end() {
    let mut counts = Vec::new();
    for order in Order::ALL {
        let checked = small(order).map(|schedule| {
            let Schedule { ranks, micro_batches, chunks, .. } = schedule;
            let name = order.name;
            check(&schedule).unwrap_or_else(|error| {
                panic!("{name}, {ranks} ranks, {micro_batches} micro-batches, {chunks} chunks: {error}")
            })
        });
        counts.push((order.name, checked.count()));
    }
    // In 42 of 128 pairs, the ranks divide the micro-batches.
    let expected = [128, 128, 128, 3 * 42, 4 * 128, 128, 128];
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), expected, "{counts:?}");
}

#[test]
fn stages_and_locations_are_inverse() {
    for order in Order::ALL {
        for schedule in small(order).filter(|schedule| schedule.micro_batches == 8) {
            let at = |stage| schedule.location(stage);
            let stages = (0..schedule.stages()).map(|stage| schedule.stage(at(stage).0, at(stage).1));
            assert!(stages.eq(0..schedule.stages()), "{}", order.name);
        }
    }
    let [looped, v] = ["interleaved", "zb-v"].map(|name| schedule(name, 4, 8));
    let stages = |schedule: &Schedule, rank| [schedule.stage(rank, 0), schedule.stage(rank, 1)];
    assert_eq!([0, 3].map(|rank| stages(&looped, rank)), [[0, 4], [3, 7]]);
    assert_eq!([0, 3].map(|rank| stages(&v, rank)), [[0, 7], [3, 4]]);
    assert_eq!((v.next(3, 0), v.sender(Payload::Activation, 3, 1)), (Some((3, 1)), None));
}
