//! The check rejects every corrupted schedule that is no other order of the same work.

use super::schedule;
use crate::pipeline::check::Fault;
use crate::pipeline::{Op, Order, Payload, Schedule, Violation, check};
use std::collections::HashMap;

/// Returns whether a schedule with the operations of a valid one, in another order within its rows,
/// is valid. It knows no links and plays nothing: it compares positions, and searches for a cycle.
fn is_order_of_the_same_work(schedule: &Schedule) -> bool {
    let rows = &schedule.rows;
    rows.iter().enumerate().all(|(rank, row)| row_is_ordered(schedule, rank, row))
        && edges(schedule).is_some_and(|edges| is_acyclic(rows, &edges))
}

/// Returns whether every operation of a row follows those of the row that it needs.
fn row_is_ordered(schedule: &Schedule, rank: usize, row: &[Op]) -> bool {
    let positions: HashMap<Op, usize> = row.iter().enumerate().map(|(index, &op)| (op, index)).collect();
    let follows = |index: usize, earlier: Op| positions.get(&earlier).is_none_or(|&earlier| earlier < index);
    let backward_of = |index, micro, chunk| {
        follows(index, Op::Backward { micro, chunk }) && follows(index, Op::BackwardInput { micro, chunk })
    };
    row.last() == Some(&Op::Step)
        && row.iter().enumerate().all(|(index, &op)| match op {
            Op::Forward { micro, chunk } => match schedule.previous(rank, chunk) {
                Some((peer, chunk)) if peer == rank => follows(index, Op::Forward { micro, chunk }),
                Some((peer, _)) => {
                    follows(index, Op::Receive { what: Payload::Activation, micro, chunk, peer })
                }
                None => true,
            },
            Op::Backward { micro, chunk } | Op::BackwardInput { micro, chunk } => {
                let gradient = match schedule.next(rank, chunk) {
                    Some((peer, chunk)) if peer == rank => backward_of(index, micro, chunk),
                    Some((peer, _)) => {
                        follows(index, Op::Receive { what: Payload::Gradient, micro, chunk, peer })
                    }
                    None => true,
                };
                gradient && follows(index, Op::Forward { micro, chunk })
            }
            Op::BackwardWeights { micro, chunk } => follows(index, Op::BackwardInput { micro, chunk }),
            Op::Send { what: Payload::Activation, micro, chunk, .. } => {
                follows(index, Op::Forward { micro, chunk })
            }
            Op::Send { what: Payload::Gradient, micro, chunk, .. } => backward_of(index, micro, chunk),
            Op::Receive { .. } | Op::Step => true,
        })
}

type Node = (usize, usize);

/// Returns the operations that must follow each other: a receive its send, and a send the receive
/// before on its link. `None` if the messages of a link are not received in the order of sending.
fn edges(schedule: &Schedule) -> Option<Vec<(Node, Node)>> {
    // Positions with micro-batch and receiving stage, by sender, receiver and payload.
    type Messages = Vec<(Node, (usize, usize))>;
    let mut links: HashMap<(usize, usize, Payload), [Messages; 2]> = HashMap::new();
    for (rank, row) in schedule.rows.iter().enumerate() {
        for (index, &op) in row.iter().enumerate() {
            match op {
                Op::Send { what, micro, chunk, peer } => {
                    let (_, there) = schedule.receiver(what, rank, chunk)?;
                    let message = ((rank, index), (micro, schedule.stage(peer, there)));
                    links.entry((rank, peer, what)).or_default()[0].push(message);
                }
                Op::Receive { what, micro, chunk, peer } => {
                    let message = ((rank, index), (micro, schedule.stage(rank, chunk)));
                    links.entry((peer, rank, what)).or_default()[1].push(message);
                }
                _ => {}
            }
        }
    }
    let mut edges = Vec::new();
    for [sends, receives] in links.values() {
        if !sends.iter().map(|send| send.1).eq(receives.iter().map(|receive| receive.1)) {
            return None;
        }
        edges.extend(sends.iter().zip(receives).map(|(send, receive)| (send.0, receive.0)));
        edges.extend(receives.iter().zip(&sends[1..]).map(|(receive, send)| (receive.0, send.0)));
    }
    Some(edges)
}

/// Returns whether rows and edges leave an order of all operations.
fn is_acyclic(rows: &[Vec<Op>], edges: &[(Node, Node)]) -> bool {
    let mut followers: HashMap<Node, Vec<Node>> = HashMap::new();
    let mut missing: HashMap<Node, usize> = HashMap::new();
    let nodes: Vec<Node> = rows
        .iter()
        .enumerate()
        .flat_map(|(rank, row)| (0..row.len()).map(move |index| (rank, index)))
        .collect();
    let in_row =
        nodes.iter().filter(|node| node.1 > 0).map(|&(rank, index)| ((rank, index - 1), (rank, index)));
    for (earlier, later) in in_row.chain(edges.iter().copied()) {
        followers.entry(earlier).or_default().push(later);
        *missing.entry(later).or_default() += 1;
    }
    let mut ready: Vec<Node> = nodes.iter().copied().filter(|node| !missing.contains_key(node)).collect();
    let mut ordered = 0;
    while let Some(node) = ready.pop() {
        ordered += 1;
        for &later in followers.get(&node).into_iter().flatten() {
            let left = missing.get_mut(&later).expect("an edge ends there");
            *left -= 1;
            if *left == 0 {
                ready.push(later);
            }
        }
    }
    ordered == nodes.len()
}

/// Operations that differ from `op` in one number or kind.
fn changes(schedule: &Schedule, op: Op) -> Vec<Op> {
    let numbers = |op: Op, edit: &dyn Fn(&mut usize, &mut usize, &mut usize)| {
        let mut op = op;
        let mut none = usize::MAX;
        match &mut op {
            Op::Forward { micro, chunk }
            | Op::Backward { micro, chunk }
            | Op::BackwardInput { micro, chunk }
            | Op::BackwardWeights { micro, chunk } => edit(micro, chunk, &mut none),
            Op::Send { micro, chunk, peer, .. } | Op::Receive { micro, chunk, peer, .. } => {
                edit(micro, chunk, peer)
            }
            Op::Step => {}
        }
        op
    };
    let mut changed = Vec::new();
    changed.extend((0..=schedule.micro_batches).map(|value| numbers(op, &|micro, _, _| *micro = value)));
    changed.extend((0..=schedule.chunks).map(|value| numbers(op, &|_, chunk, _| *chunk = value)));
    changed.extend((0..=schedule.ranks).map(|value| numbers(op, &|_, _, peer| *peer = value)));
    if let Some((micro, chunk)) = op.place() {
        changed.extend([
            Op::Forward { micro, chunk },
            Op::Backward { micro, chunk },
            Op::BackwardInput { micro, chunk },
            Op::BackwardWeights { micro, chunk },
            Op::Step,
        ]);
    }
    changed.extend(match op {
        Op::Send { what, micro, chunk, peer } => Some(Op::Receive { what, micro, chunk, peer }),
        Op::Receive { what, micro, chunk, peer } => Some(Op::Send { what, micro, chunk, peer }),
        _ => None,
    });
    for what in Payload::ALL {
        changed.extend(match op {
            Op::Send { micro, chunk, peer, .. } => Some(Op::Send { what, micro, chunk, peer }),
            Op::Receive { micro, chunk, peer, .. } => Some(Op::Receive { what, micro, chunk, peer }),
            _ => None,
        });
    }
    changed.retain(|&other| other != op);
    changed
}

fn examples() -> impl Iterator<Item = Schedule> {
    let numbers = [(1, 2, 2), (2, 3, 1), (3, 3, 2), (2, 6, 2), (4, 5, 1), (3, 6, 3)];
    let schedules = Order::ALL.iter().flat_map(move |order| numbers.map(|(p, m, v)| order.schedule(p, m, v)));
    schedules.filter_map(Result::ok)
}

fn without(row: &[Op], index: usize) -> Vec<Op> {
    [&row[..index], &row[index + 1..]].concat()
}

/// Asserts that the check rejects `schedule` after `corrupt`. Returns 1.
fn rejected(schedule: &Schedule, corrupt: impl FnOnce(&mut Schedule)) -> usize {
    let mut corrupted = schedule.clone();
    corrupt(&mut corrupted);
    assert!(check(&corrupted).is_err(), "{corrupted:?}");
    1
}

#[test]
fn pipelines_with_lost_or_changed_operations_are_rejected() {
    let mut count = 0;
    for schedule in examples() {
        for (rank, index) in (0..schedule.ranks)
            .flat_map(|rank| (0..schedule.rows[rank].len()).map(move |index| (rank, index)))
        {
            let op = schedule.rows[rank][index];
            count +=
                rejected(&schedule, |corrupted| corrupted.rows[rank] = without(&corrupted.rows[rank], index));
            for place in [0, index, schedule.rows[rank].len() - 1, schedule.rows[rank].len()] {
                count += rejected(&schedule, |corrupted| corrupted.rows[rank].insert(place, op));
            }
            for other in changes(&schedule, op) {
                count += rejected(&schedule, |corrupted| corrupted.rows[rank][index] = other);
            }
        }
        count += rejected(&schedule, |corrupted| corrupted.rows.push(vec![Op::Step]));
        count += rejected(&schedule, |corrupted| corrupted.micro_batches += 1);
    }
    assert!(count > 30_000, "{count}");
}

#[test]
fn swaps_in_pipelines_pass_only_if_nothing_depends_on_them() {
    let (mut accepted, mut refused) = (0, 0);
    for schedule in examples() {
        assert!(is_order_of_the_same_work(&schedule));
        for rank in 0..schedule.ranks {
            let length = schedule.rows[rank].len();
            for (first, second) in
                (0..length).flat_map(|first| (first + 1..length).map(move |second| (first, second)))
            {
                let mut swapped = schedule.clone();
                swapped.rows[rank].swap(first, second);
                let valid = is_order_of_the_same_work(&swapped);
                assert_eq!(
                    check(&swapped).is_ok(),
                    valid,
                    "rank {rank}: {first} and {second} of {schedule:?}"
                );
                *(if valid { &mut accepted } else { &mut refused }) += 1;
            }
        }
    }
    assert!(accepted > 900 && refused > 50_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn violation_names_rank_operation_and_reason() {
    let fault = |corrupt: &dyn Fn(&mut Vec<Vec<Op>>)| {
        let mut corrupted = schedule("1f1b", 2, 2);
        corrupt(&mut corrupted.rows);
        check(&corrupted).unwrap_err()
    };
    // Row of rank 1: receive, F0, B0, send, receive, F1, B1, send, step.
    let early = fault(&|rows| rows[1].swap(1, 2));
    assert_eq!(early.to_string(), "rank 1 operation 1 (B0 of chunk 0): its forward pass has not run");
    let missing = fault(&|rows| rows[1] = without(&rows[1], 4));
    assert_eq!(missing.to_string(), "rank 1 operation 4 (F1 of chunk 0): its activation has not come");
    let overtaken = fault(&|rows| rows[1][0] = rows[1][4]);
    assert_eq!(
        overtaken.to_string(),
        "rank 1 operation 0 (receive activation of micro-batch 1, chunk 0 from 0): \
         micro-batch 0 for stage 1 comes first"
    );
    let unsent = fault(&|rows| rows[1] = without(&rows[1], 3));
    assert_eq!(
        unsent.to_string(),
        "rank 1 operation 7 (step): micro-batch 0 of chunk 0 has not been through a send"
    );
    let late = fault(&|rows| rows[1].swap(0, 4));
    assert!(matches!(late, Violation::Op { fault: Fault::OutOfOrder { .. }, .. }), "{late}");
    let twice = fault(&|rows| rows[1] = [&rows[1][..1], &rows[1]].concat());
    assert!(matches!(twice, Violation::Op { fault: Fault::Repeated, .. }), "{twice}");
    let unfinished = |kept: &[usize]| {
        let mut shortened = schedule("gpipe", 1, 1);
        shortened.rows[0] = kept.iter().map(|&index| shortened.rows[0][index]).collect();
        check(&shortened).unwrap_err().to_string()
    };
    assert!(unfinished(&[2]).ends_with("micro-batch 0 of chunk 0 has not been through forward"));
    assert!(unfinished(&[0, 2]).ends_with("micro-batch 0 of chunk 0 has not been through backward"));
    let step = fault(&|rows| rows[0].truncate(8));
    assert_eq!(step.to_string(), "rank 0 takes no step");
    // Both wait for the other: rank 0 for a gradient before its forward passes, rank 1 for these.
    let deadlock = fault(&|rows| {
        let receive = rows[0].remove(4);
        rows[0].insert(0, receive);
    });
    assert_eq!(
        deadlock.to_string(),
        "deadlock: rank 0 operation 0 (receive gradient of micro-batch 0, chunk 0 from 1); \
         rank 1 operation 0 (receive activation of micro-batch 0, chunk 0 from 0)"
    );
}
