//! Cases about links that work.

use crate::testing::conformance::test_rank::{TestRank, link, run};
use crate::testing::conformance::{FabricFactory, SIZES, SMALL_GEOMETRY, hash, pattern};
use crate::{Geometry, Tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns the tag and the bytes of message `index` of a lane.
fn message(sender: usize, lane: usize, index: u64, bytes: usize) -> (Tag, Vec<u8>) {
    let seed = (sender as u64) << 56 | (lane as u64) << 48 | index;
    (Tag([seed, !seed, index, bytes as u64]), pattern(seed, bytes))
}

fn size(seed: u64, index: u64, slot_bytes: usize) -> usize {
    let number = hash(seed, index) as usize;
    match number % 4 {
        0 => SIZES[number / 4 % SIZES.len()].min(slot_bytes),
        1 => slot_bytes,
        _ => number / 4 % (slot_bytes + 1),
    }
}

/// Sends every size, on every lane, in both directions, with both ways of receiving.
pub fn messages_arrive_intact_and_in_order(make: FabricFactory<'_>) {
    run(make, 2, SMALL_GEOMETRY, |mut side| {
        let (rank, peer) = (side.fabric.rank, 1 - side.fabric.rank);
        for (index, &bytes) in SIZES.iter().cycle().take(3 * SIZES.len()).enumerate() {
            for lane in 0..SMALL_GEOMETRY.lanes {
                let (tag, body) = message(rank, lane, index as u64, bytes);
                side.send(peer, lane, tag, &[&body]);
            }
            for lane in (0..SMALL_GEOMETRY.lanes).rev() {
                let found = side.receive(peer, lane, (index + lane) % 2 == 0);
                assert!(
                    found == message(peer, lane, index as u64, bytes),
                    "message {index} of {bytes} bytes"
                );
            }
        }
        ((), Some(side))
    });
}

/// Checks that the parts of a message follow each other in it, empty ones too.
pub fn gathered_parts_form_one_message(make: FabricFactory<'_>) {
    const CUTS: [&[usize]; 6] =
        [&[], &[0], &[1, 2, 3], &[0, 8, 0, 8], &[64, 1, 255], &[7, 57, 0, 64, 100, 3]];
    run(make, 2, SMALL_GEOMETRY, |mut side| {
        for (index, cuts) in CUTS.into_iter().enumerate() {
            let (tag, body) = message(0, 1, index as u64, cuts.iter().sum());
            if side.fabric.rank == 1 {
                assert!(side.receive(0, 1, index % 2 == 0) == (tag, body), "parts {cuts:?}");
                continue;
            }
            let mut remaining = &body[..];
            let parts: Vec<&[u8]> = cuts.iter().filter_map(|&cut| remaining.split_off(..cut)).collect();
            side.send(1, 1, tag, &parts);
        }
        ((), Some(side))
    });
}

/// Checks that a look at a message does not consume it, and that a release consumes one.
pub fn message_stays_until_release(make: FabricFactory<'_>) {
    run(make, 2, SMALL_GEOMETRY, |mut side| {
        for index in 0..6 {
            let (tag, body) = message(0, 0, index, SIZES[index as usize + 3]);
            if side.fabric.rank == 0 {
                side.send(1, 0, tag, &[&body]);
                continue;
            }
            side.wait_until("a body", |fabric| Ok(link(fabric, 0).body(0)?.map(|_| ())));
            for _ in 0..3 {
                let link = side.link(0);
                let head = link.header(0).expect("sound").expect("still here");
                assert_eq!((head.tag, head.bytes), (tag, body.len()));
                assert_eq!(link.body(0).expect("sound").expect("still here").len(), body.len());
            }
            assert!(side.receive(0, 0, index % 2 == 0) == (tag, body), "message {index}");
        }
        ((), Some(side))
    });
}

/// Checks that a lane holds its slots and no more, and that a release makes room again.
pub fn full_lane_refuses_until_release(make: FabricFactory<'_>) {
    let geometry = Geometry { slots: 2, ..SMALL_GEOMETRY };
    let full = AtomicUsize::new(0);
    run(make, 2, geometry, |mut side| {
        if side.fabric.rank == 0 {
            fill(&mut side, geometry.slots);
            full.store(1, Ordering::Release);
            let (tag, body) = message(0, 0, geometry.slots as u64, 320);
            side.send(1, 0, tag, &[&body]);
        } else {
            side.wait_until("the lane to be full", |_| Ok((full.load(Ordering::Acquire) == 1).then_some(())));
            for index in 0..=geometry.slots as u64 {
                assert!(side.receive(0, 0, true) == message(0, 0, index, 320), "message {index}");
            }
        }
        ((), Some(side))
    });
}

/// Sends messages on lane 0 until it is full, and checks that it stays so.
fn fill(side: &mut TestRank, slots: usize) {
    for index in 0..slots as u64 {
        let (tag, body) = message(0, 0, index, 320);
        side.send(1, 0, tag, &[&body]);
    }
    let (tag, body) = message(0, 0, slots as u64, 320);
    let begun = Instant::now();
    for rounds in 1.. {
        assert!(!side.try_send(1, 0, tag, &[&body]).expect("sound"), "a lane holds {slots} messages");
        if begun.elapsed() > Duration::from_millis(20) {
            break;
        }
        side.idle(rounds);
    }
}

/// Checks that a full lane does not block another.
pub fn full_lane_does_not_block_others(make: FabricFactory<'_>) {
    run(make, 2, SMALL_GEOMETRY, |mut side| {
        if side.fabric.rank == 0 {
            fill(&mut side, SMALL_GEOMETRY.slots);
            for index in 0..20 {
                for lane in 1..SMALL_GEOMETRY.lanes {
                    let (tag, body) = message(0, lane, index, 65);
                    side.send(1, lane, tag, &[&body]);
                }
            }
        } else {
            for index in 0..20 {
                for lane in 1..SMALL_GEOMETRY.lanes {
                    assert!(side.receive(0, lane, true) == message(0, lane, index, 65), "lane {lane}");
                }
            }
            for index in 0..SMALL_GEOMETRY.slots as u64 {
                assert!(side.receive(0, 0, false) == message(0, 0, index, 320), "message {index}");
            }
        }
        ((), Some(side))
    });
}

/// Sends messages longer than an operating system buffers, in both directions at once.
pub fn long_messages_arrive_intact(make: FabricFactory<'_>) {
    let geometry = Geometry { slots: 2, slot_bytes: 3 << 20, ..SMALL_GEOMETRY };
    run(make, 2, geometry, |mut side| {
        let (rank, peer) = (side.fabric.rank, 1 - side.fabric.rank);
        for index in 0..4 {
            let bytes = geometry.slot_bytes - index as usize;
            let (tag, body) = message(rank, 0, index, bytes);
            side.send(peer, 0, tag, &[&body[..5], &body[5..]]);
            let found = side.receive(peer, 0, index % 2 == 0);
            assert!(found == message(peer, 0, index, bytes), "message {index}");
        }
        ((), Some(side))
    });
}

/// Sends many messages of random sizes on random lanes, in both directions at once.
pub fn random_traffic_arrives_intact(make: FabricFactory<'_>) {
    for (seed, slots) in [(1, 2), (2, 3), (3, 8)] {
        let geometry = Geometry { slots, slot_bytes: 5000, ..SMALL_GEOMETRY };
        run(make, 2, geometry, |mut side| {
            exchange(&mut side, seed, 400);
            ((), Some(side))
        });
    }
}

/// Sends from every rank to every other, on every lane.
pub fn four_ranks_exchange_concurrently(make: FabricFactory<'_>) {
    run(make, 4, SMALL_GEOMETRY, |mut side| {
        exchange(&mut side, 7, 40);
        ((), Some(side))
    });
}

/// Sends `count` messages on every lane to every other rank, and receives as many.
fn exchange(side: &mut TestRank, seed: u64, count: u64) {
    let (rank, ranks, geometry) = (side.fabric.rank, side.fabric.ranks, side.fabric.geometry);
    let ways: Vec<_> = (0..ranks)
        .filter(|&peer| peer != rank)
        .flat_map(|peer| (0..geometry.lanes).map(move |lane| (peer, lane)))
        .collect();
    let mut sent = vec![0; ways.len()];
    let mut received = vec![0; ways.len()];
    let due = |sender, lane, index| {
        let seed = seed << 8 | (sender * geometry.lanes + lane) as u64;
        message(sender, lane, index, size(seed, index, geometry.slot_bytes))
    };
    side.wait_until("the traffic to end", |fabric| {
        let mut moved = false;
        for (way, &(peer, lane)) in ways.iter().enumerate() {
            let link = link(fabric, peer);
            while sent[way] < count {
                let (tag, body) = due(rank, lane, sent[way]);
                let cut = body.len() / 3;
                let mut parts = [&body[..cut], &body[cut..]].into_iter().map(Into::into);
                if !link.try_send(lane, &tag, body.len(), &mut parts)? {
                    break;
                }
                (sent[way], moved) = (sent[way] + 1, true);
            }
            while received[way] < count
                && let Some(found) = TestRank::try_receive(link, lane)?
            {
                assert!(found == due(peer, lane, received[way]), "message {} from {peer}", received[way]);
                (received[way], moved) = (received[way] + 1, true);
            }
        }
        let through = !moved && sent.iter().chain(&received).all(|&index| index == count);
        Ok(through.then_some(()))
    });
}
