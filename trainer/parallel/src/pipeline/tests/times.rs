//! Predicted times: by hand, by the published formulas, and beside each other.

use super::{in_parts, schedule, small};
use crate::pipeline::{Op, Order, Schedule, StageCosts, Timeline, play};

fn costs(forward: f64, backward_input: f64, backward_weights: f64, transfer: f64) -> StageCosts {
    StageCosts::new([forward, backward_input, backward_weights], 1, transfer)
}

/// Plays equal stages.
fn timeline(schedule: &Schedule, costs: StageCosts) -> Timeline {
    play(schedule, &vec![costs; schedule.stages()]).unwrap()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn unequal_stages_take_the_times_found_by_hand() {
    let played =
        play(&schedule("1f1b", 2, 2), &[costs(1.0, 2.0, 1.0, 0.5), costs(2.0, 3.0, 1.0, 0.25)]).unwrap();
    let ends = |rank: usize| played.rows[rank].iter().map(|span| span.end).collect::<Vec<_>>();
    // F0, send, F1, send, receive, B0, receive, B1, step.
    assert_eq!(ends(0), [1.0, 1.0, 2.0, 2.0, 7.75, 10.75, 13.75, 16.75, 16.75]);
    // Receive, F0, B0, send, receive, F1, B1, send, step.
    assert_eq!(ends(1), [1.5, 3.5, 7.5, 7.5, 7.5, 9.5, 13.5, 13.5, 13.5]);
    assert_eq!(played.makespan, 16.75);
    assert!(near(played.idle(0), 1.0 - 8.0 / 16.75) && near(played.idle(1), 1.0 - 12.0 / 16.75));
    assert!(near(played.bubble(), 1.0 - 10.0 / 16.75));
}

#[test]
fn links_move_one_pipeline_message_at_a_time() {
    let played = timeline(&schedule("gpipe", 2, 3), costs(1.0, 1.0, 1.0, 3.0));
    let receives = played.rows[1].iter().filter(|span| matches!(span.op, Op::Receive { .. }));
    assert!(receives.map(|span| span.end).eq([4.0, 7.0, 10.0]));
}

#[test]
fn bubbles_are_those_of_the_published_formulas() {
    let cases = [
        costs(1.0, 1.0, 1.0, 0.0),
        costs(1.0, 2.0, 1.0, 0.0),
        costs(2.0, 1.5, 0.5, 0.0),
        costs(3.0, 4.0, 5.0, 0.0),
    ];
    for order in Order::ALL {
        let mut compared = 0;
        for schedule in small(order).chain(in_parts(order)) {
            for costs in cases {
                let Some(formula) = (order.bubble)(&schedule, &costs) else { continue };
                let played = timeline(&schedule, costs);
                assert!(near(played.bubble(), formula), "{} {costs:?} {formula}\n{schedule}", order.name);
                assert!((0..schedule.ranks).all(|rank| near(played.idle(rank), formula)));
                compared += 1;
            }
        }
        assert!(compared >= 72, "{} {compared}", order.name);
    }
    let bubble = |name: &str| {
        let schedule = schedule(name, 4, 8);
        timeline(&schedule, costs(1.0, 1.0, 1.0, 0.0)).bubble()
    };
    assert!(near(bubble("naive"), 3.0 / 4.0));
    assert!(near(bubble("gpipe"), 3.0 / 11.0) && near(bubble("1f1b"), 3.0 / 11.0));
    assert!(near(bubble("interleaved"), 3.0 / 19.0) && near(bubble("breadth-first"), 3.0 / 19.0));
    assert!(near(bubble("zb-h1"), 3.0 / 27.0) && near(bubble("zb-v"), 3.0 / 51.0));
}

#[test]
fn zero_bubble_v_waits_only_before_its_first_pass() {
    for ranks in 1..=8 {
        let played = timeline(&schedule("zb-v", ranks, 16), costs(1.0, 1.0, 1.0, 0.0));
        for (rank, row) in played.rows.iter().enumerate() {
            let passes: Vec<_> = row.iter().filter(|span| span.op.computes()).collect();
            assert_eq!(passes[0].start, rank as f64);
            assert!(passes.windows(2).all(|pair| pair[0].end == pair[1].start), "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn zero_bubble_pipelines_are_faster_than_1f1b() {
    // A rank's layers take equal times under all orders: with two stages per rank, half in each.
    let time = |name: &str, ranks, micro_batches| {
        let schedule = schedule(name, ranks, micro_batches);
        let share = 1.0 / schedule.chunks as f64;
        timeline(&schedule, costs(share, share, share, 0.0)).makespan
    };
    let [usual, h1, v] = ["1f1b", "zb-h1", "zb-v"].map(|name| time(name, 4, 8));
    assert_eq!((usual, h1, v), (33.0, 27.0, 25.5));
    assert!(v <= 0.9 * usual && h1 <= 0.9 * usual);
    for (ranks, micro_batches) in (2..=8).flat_map(|ranks| (ranks..=16).map(move |micro| (ranks, micro))) {
        let idle = |name| time(name, ranks, micro_batches) - 3.0 * micro_batches as f64;
        assert!(idle("zb-h1") < idle("1f1b") / 2.0, "{ranks} ranks, {micro_batches} micro-batches");
    }
}

#[test]
fn pipeline_costs_must_be_times_of_all_stages() {
    let schedule = schedule("1f1b", 2, 2);
    let refused = |costs: &[StageCosts]| play(&schedule, costs).unwrap_err().to_string();
    let unit = costs(1.0, 1.0, 1.0, 0.0);
    assert!(refused(&[unit]).contains("each of 2 pipeline stages"));
    assert!(refused(&[unit, costs(1.0, f64::NAN, 1.0, 0.0)]).contains("4 times from 0"));
    let mut broken = schedule.clone();
    broken.rows[0].clear();
    assert!(play(&broken, &[unit, unit]).unwrap_err().to_string().contains("invalid pipeline schedule"));
}
