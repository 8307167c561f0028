//! Messages between the passes of a schedule.

use crate::pipeline::{Op, Schedule};
use std::collections::HashSet;

/// Inserts the sends and receives between the passes in `schedule`.
pub(super) fn insert(schedule: &mut Schedule) {
    let rows = schedule.rows.iter().enumerate();
    schedule.rows = rows
        .map(|(rank, row)| row.iter().flat_map(|&op| with_messages(schedule, rank, op)).flatten().collect())
        .collect();
    receive_in_time(schedule);
}

/// Returns a pass between the receive of its operand and the send of its result.
fn with_messages(schedule: &Schedule, rank: usize, op: Op) -> [Option<Op>; 3] {
    let Some(((micro, chunk), what)) = op.place().zip(op.needs()) else {
        return [None, Some(op), None];
    };
    let receive = |(peer, _)| Op::Receive { what, micro, chunk, peer };
    let send = |(peer, _)| Op::Send { what, micro, chunk, peer };
    let (sender, receiver) = (schedule.sender(what, rank, chunk), schedule.receiver(what, rank, chunk));
    [sender.map(receive), Some(op), receiver.map(send)]
}

/// Moves receives forward where links of one message would block all ranks forever.
///
/// A rank that runs all micro-batches through one chunk does not look at what the last rank sends
/// back for its next chunk. That receive moves to the operation at which the rank would wait.
fn receive_in_time(schedule: &mut Schedule) {
    let mut links = HashSet::new();
    let mut next = vec![0; schedule.ranks];
    loop {
        let mut moved = false;
        for rank in schedule.rounds() {
            let passes = |op: &&Op| match **op {
                Op::Send { what, peer, .. } => links.insert((rank, peer, what)),
                Op::Receive { what, peer, .. } => links.remove(&(peer, rank, what)),
                _ => true,
            };
            let passed = schedule.rows[rank][next[rank]..].iter().take_while(passes).count();
            next[rank] += passed;
            moved |= passed > 0;
        }
        if !moved && !receive_earlier(schedule, &next) {
            return;
        }
    }
}

/// Moves a receive that a blocked sender waits for to the operation that its rank is at: the one
/// that stands furthest behind it. Returns false if there is none.
fn receive_earlier(schedule: &mut Schedule, next: &[usize]) -> bool {
    let rows = &schedule.rows;
    let waited_for = rows.iter().enumerate().filter_map(|(rank, row)| {
        let Some(&Op::Send { what, peer, .. }) = row.get(next[rank]) else { return None };
        let takes = |op: &Op| matches!(*op, Op::Receive { what: w, peer: p, .. } if (w, p) == (what, rank));
        rows[peer][next[peer]..].iter().position(takes).map(|distance| (distance, peer))
    });
    let Some((distance, rank)) = waited_for.max() else { return false };
    schedule.rows[rank][next[rank]..=next[rank] + distance].rotate_right(1);
    true
}
