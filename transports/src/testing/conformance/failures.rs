//! Cases about control messages, and about ranks that have ended.

use crate::testing::conformance::test_rank::{TestRank, run};
use crate::testing::conformance::{FabricFactory, SMALL_GEOMETRY, TIMEOUT, pattern};
use crate::{Error, Geometry, MAX_CONTROL_MSG_BYTES, PeerEvent, Tag};
use std::time::{Duration, Instant};

/// Checks that control messages of every size arrive whole and, from one sender, in order.
pub fn control_messages_arrive_in_order(make: FabricFactory<'_>) {
    const LENGTHS: [usize; 6] = [0, 1, 40, MAX_CONTROL_MSG_BYTES, 2, MAX_CONTROL_MSG_BYTES - 1];
    run(make, 3, SMALL_GEOMETRY, |mut side| {
        let (rank, ranks) = (side.fabric.rank, side.fabric.ranks);
        for (index, &bytes) in LENGTHS.iter().enumerate() {
            side.fabric.control.post(&pattern((rank * 8 + index) as u64, bytes));
        }
        let mut heard = vec![0; ranks];
        for _ in 0..LENGTHS.len() * (ranks - 1) {
            let PeerEvent::Message { from, bytes } = side.next_event() else { panic!("nobody has left") };
            let index = heard[from];
            assert!(bytes == pattern((from * 8 + index) as u64, LENGTHS[index]), "note {index} of {from}");
            heard[from] += 1;
        }
        assert_eq!(heard[rank], 0);
        ((), Some(side))
    });
}

/// Checks that every rank learns of a death, once, after the control messages that came before it.
pub fn exit_is_reported_once_and_soon(make: FabricFactory<'_>) {
    run(make, 3, SMALL_GEOMETRY, |mut side| {
        if side.fabric.rank == 1 {
            side.fabric.control.post(b"farewell");
            return ((), None);
        }
        let begun = Instant::now();
        for news in
            [PeerEvent::Message { from: 1, bytes: b"farewell".to_vec() }, PeerEvent::Exited { from: 1 }]
        {
            let of_the_dead = std::iter::repeat_with(|| side.next_event()).find(|event| !is_not_exit(event));
            assert_eq!(of_the_dead, Some(news));
        }
        assert!(begun.elapsed() < TIMEOUT, "the news took {:?}", begun.elapsed());
        // Control messages to a dead rank are dropped without harm, and its death is not reported
        // again.
        let begun = Instant::now();
        for rounds in 1.. {
            side.fabric.control.post(&[7; MAX_CONTROL_MSG_BYTES]);
            let news = std::iter::from_fn(|| side.fabric.control.poll()).find(|event| !is_not_exit(event));
            assert_eq!(news, None);
            side.idle(rounds);
            if begun.elapsed() > Duration::from_millis(20) {
                break;
            }
        }
        ((), Some(side))
    });
}

fn is_not_exit(event: &PeerEvent) -> bool {
    matches!(event, PeerEvent::Message { from: 0 | 2, .. })
}

/// Checks that a control message sent before a rank left can be received after it left.
pub fn last_control_message_survives_exit(make: FabricFactory<'_>) {
    let geometry = Geometry { slot_bytes: 4096, ..SMALL_GEOMETRY };
    run(make, 2, geometry, |mut side| {
        let bodies: Vec<_> = (0..geometry.slots).map(|index| pattern(index as u64, 4000)).collect();
        if side.fabric.rank == 1 {
            for (index, body) in bodies.iter().enumerate() {
                side.send(0, 2, Tag([index as u64; 4]), &[body]);
            }
            return ((), None);
        }
        assert_eq!(side.next_event(), PeerEvent::Exited { from: 1 });
        for (index, body) in bodies.iter().enumerate() {
            let found = side.receive(1, 2, index % 2 == 0);
            assert!(found == (Tag([index as u64; 4]), body.clone()), "message {index}");
        }
        ((), Some(side))
    });
}

/// Checks that calls about an ended peer return at once. They may report that it is lost.
pub fn exited_peer_blocks_nobody(make: FabricFactory<'_>) {
    run(make, 2, SMALL_GEOMETRY, |mut side| {
        if side.fabric.rank == 1 {
            return ((), None);
        }
        assert_eq!(side.next_event(), PeerEvent::Exited { from: 1 });
        let begun = Instant::now();
        let body = pattern(1, SMALL_GEOMETRY.slot_bytes);
        for _ in 0..1000 {
            for lane in 0..SMALL_GEOMETRY.lanes {
                assert_ok_or_lost(side.try_send(1, lane, Tag::default(), &[&body]));
                assert_ok_or_lost(side.link(1).header(lane).map(|head| assert_eq!(head, None)));
                assert_ok_or_lost(side.link(1).body(lane).map(|body| assert!(body.is_none())));
                assert_ok_or_lost(side.link(1).progress());
            }
        }
        assert!(begun.elapsed() < TIMEOUT, "calls to a dead peer took {:?}", begun.elapsed());
        ((), Some::<TestRank>(side))
    });
}

fn assert_ok_or_lost<T>(result: crate::Result<T>) {
    match result {
        Ok(_) | Err(Error::ConnectionLost { peer: 1, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
