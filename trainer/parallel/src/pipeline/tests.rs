//! Tests of orders: golden rows, the check over all small dimensions, and refused numbers.

use super::*;

mod corruption;
mod executed;
mod times;
mod under_way;

/// Every schedule of an order with at most 8 ranks, 16 micro-batches and 4 chunks.
fn small(order: &'static Order) -> impl Iterator<Item = Schedule> {
    let dimensions = (1..=8).flat_map(|ranks| (1..=16).map(move |micro_batches| (ranks, micro_batches)));
    let schedules = dimensions.flat_map(move |(ranks, micro_batches)| {
        (1..=4).map(move |chunks| order.schedule(ranks, micro_batches, chunks))
    });
    schedules.filter_map(Result::ok)
}

/// Every schedule of an order with 2 to 4 micro-sequences and at most 6 ranks, 4 micro-batches and
/// 3 chunks.
fn in_parts(order: &'static Order) -> impl Iterator<Item = Schedule> {
    let dimensions = (1..=6)
        .flat_map(|ranks| (1..=4).flat_map(move |micro| (2..=4).map(move |parts| [ranks, micro, parts])));
    let schedules = dimensions.flat_map(move |[ranks, micro, parts]| {
        (1..=3).map(move |chunks| order.schedule_parts(ranks, micro, parts, chunks))
    });
    schedules.filter_map(Result::ok)
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
fn micro_sequences_go_back_in_reverse_order() {
    let mut count = 0;
    let schedules =
        Order::ALL.iter().flat_map(|order| in_parts(order).map(move |schedule| (order, schedule)));
    for (order, schedule) in schedules {
        let held =
            check(&schedule).unwrap_or_else(|error| panic!("{} {schedule}{error}", order.name)).activations;
        let bound: Vec<_> = (0..schedule.ranks).map(|rank| (order.activations)(&schedule, rank)).collect();
        // A rank before the last takes the next micro-sequence of a whole micro-batch that waits.
        // ZB-V reaches its bound once its steady phase begins.
        let Schedule { ranks, micro_batches, micro_sequences, .. } = schedule;
        if order.name == "zb-v" && micro_batches < 2 * ranks + micro_sequences - 2 {
            assert!(
                held.iter().zip(&bound).all(|(held, bound)| held <= bound),
                "{held:?} {bound:?} {schedule}"
            );
        } else {
            assert_eq!(held, bound, "{} {schedule}", order.name);
        }
        count += 1;
    }
    // Breadth-first has 1 to 3 chunks. Interleaved has 2 or 3, and needs whole rounds: 52 of 72.
    assert_eq!(count, 72 * (5 + 3) + 52 * 2);
    let order = Order::find("1f1b").unwrap();
    assert_eq!(
        order.schedule_parts(2, 2, 3, 1).unwrap().to_string(),
        "F0 F1 F2 F3 B2 F4 B1 F5 B0 B5 B4 B3\n\
         F0 F1 F2 B2 F3 B1 F4 B0 F5 B5 B4 B3\n"
    );
    let order = Order::find("zb-h1").unwrap();
    assert_eq!(
        order.schedule_parts(2, 2, 2, 1).unwrap().to_string(),
        "F0 F1 F2 I1 W1 F3 I0 W0 I3 W3 I2 W2\n\
         F0 F1 I1 F2 I0 W1 F3 I3 W0 I2 W3 W2\n"
    );
}

#[test]
fn micro_sequences_out_of_order_are_rejected() {
    let complete = schedule("gpipe", 2, 4);
    let violation = check(&Schedule { micro_sequences: 2, ..complete }).unwrap_err().to_string();
    assert!(violation.contains("the micro-sequence before it, in its direction, has not run"), "{violation}");
    let three = Schedule { micro_sequences: 3, ..schedule("gpipe", 2, 4) };
    assert!(check(&three).is_err(), "4 passes are no micro-batches of 3");
    let interleaved = Order::find("interleaved").unwrap();
    let error = interleaved.schedule_parts(3, 3, 2, 2).unwrap_err().to_string();
    assert!(
        error.contains("6 micro-sequences are no multiple of 4, the fewest whole micro-batches"),
        "{error}"
    );
    assert!(interleaved.schedule_parts(3, 4, 2, 2).is_ok(), "two rounds of two micro-batches");
}

#[test]
fn stages_and_locations_are_inverse() {
    for order in Order::ALL {
        for schedule in small(order).filter(|schedule| schedule.micro_batches == 8) {
            let location = |stage| schedule.location(stage);
            let stages =
                (0..schedule.stages()).map(|stage| schedule.stage(location(stage).0, location(stage).1));
            assert!(stages.eq(0..schedule.stages()), "{}", order.name);
        }
    }
    let [looped, v] = ["interleaved", "zb-v"].map(|name| schedule(name, 4, 8));
    let stages = |schedule: &Schedule, rank| [schedule.stage(rank, 0), schedule.stage(rank, 1)];
    assert_eq!([0, 3].map(|rank| stages(&looped, rank)), [[0, 4], [3, 7]]);
    assert_eq!([0, 3].map(|rank| stages(&v, rank)), [[0, 7], [3, 4]]);
    assert_eq!((v.next(3, 0), v.sender(Payload::Activation, 3, 1)), (Some((3, 1)), None));
}

#[test]
fn held_activations_are_those_that_were_published() {
    for order in Order::ALL {
        for schedule in small(order) {
            let held = check(&schedule).unwrap().activations;
            let bound: Vec<_> =
                (0..schedule.ranks).map(|rank| (order.activations)(&schedule, rank)).collect();
            // ZB-V reaches its bound once its steady phase begins.
            if order.name == "zb-v" && schedule.micro_batches < 2 * schedule.ranks - 1 {
                assert!(held.iter().zip(&bound).all(|(held, bound)| held <= bound), "{held:?} {bound:?}");
            } else {
                assert_eq!(held, bound, "{} {schedule}", order.name);
            }
        }
    }
    let held = |name| check(&schedule(name, 4, 8)).unwrap().activations;
    assert_eq!((held("gpipe"), held("1f1b")), (vec![8; 4], vec![4, 3, 2, 1]));
    assert_eq!((held("zb-h1"), held("zb-v")), (vec![4; 4], vec![8; 4]));
    assert_eq!((held("interleaved"), held("breadth-first")), (vec![11, 9, 7, 5], vec![16; 4]));
}

#[test]
fn gradients_add_up_in_the_order_of_micro_batches() {
    for order in Order::ALL {
        for schedule in small(order).filter(|schedule| schedule.micro_batches % 5 == 1).chain(in_parts(order))
        {
            for (row, chunk) in
                schedule.rows.iter().flat_map(|row| (0..schedule.chunks).map(move |c| (row, c)))
            {
                let adds = |op: &&Op| matches!(op, Op::Backward { .. } | Op::BackwardWeights { .. });
                let places = row.iter().filter(adds).filter_map(|op| op.place());
                let micros = places.filter(|place| place.1 == chunk).map(|place| place.0);
                // Micro-sequences add theirs in the order in which they go back.
                let numbers = 0..schedule.micro_batches;
                assert!(
                    micros.eq(numbers.map(|number| schedule.backward_micro(number))),
                    "{} {schedule}",
                    order.name
                );
            }
        }
    }
}

#[test]
fn only_breadth_first_receives_ahead_of_need() {
    for order in Order::ALL {
        for schedule in small(order) {
            let received = check(&schedule).unwrap().received.into_iter().max();
            assert!(order.name == "breadth-first" || received <= Some(1), "{} {received:?}", order.name);
        }
    }
    // Rank 0 takes what the last rank sends for the next chunk while it is in its first chunk.
    let breadth_first = Order::find("breadth-first").unwrap().schedule(4, 16, 2).unwrap();
    assert_eq!(check(&breadth_first).unwrap().received, [9, 1, 1, 9]);
}

#[test]
fn impossible_pipelines_name_rule_and_numbers() {
    let refuse = |name: &str, numbers: [usize; 3], words: &str| {
        let refused = Order::find(name).and_then(|order| order.schedule(numbers[0], numbers[1], numbers[2]));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refuse("2f2b", [4, 8, 1], "there are naive, gpipe, 1f1b, interleaved, breadth-first, zb-h1, zb-v");
    refuse("gpipe", [0, 8, 1], "gpipe: 0 ranks and 8 micro-batches");
    refuse("1f1b", [4, 0, 1], "at least 1 of each");
    refuse("1f1b", [4, 8, 2], "chunks = 2: a rank holds exactly 1");
    refuse("interleaved", [4, 8, 1], "chunks = 1: a rank holds at least 2");
    refuse("interleaved", [4, 6, 2], "interleaved: 6 micro-batches are no multiple of 4 ranks");
    refuse("zb-v", [4, 8, 3], "chunks = 3: a rank holds exactly 2");
    refuse("breadth-first", [4, 8, 0], "chunks = 0: a rank holds at least 1");
    refuse("gpipe", [5000, 8, 1], "5000 ranks: there may be 4096");
    refuse("breadth-first", [2, usize::MAX, 2], "there may be 131072 forward passes");
}
