//! The rules for the frames of a peer, and the ends of messages when it breaks them or leaves.

use super::frame::Frame;
use super::scripted::{SLOT_BYTES, Script, ending};
use super::{EAGER_CREDIT, EAGER_OVERHEAD};
use crate::error::{ErrorKind, Result};

/// Asserts that a peer broke the rules, as the text says.
#[track_caller]
fn assert_violation<R: std::fmt::Debug>(result: Result<R>, violator: usize, text: &str) {
    let error = result.expect_err("a violation");
    assert!(
        matches!(error.kind(), ErrorKind::ProtocolViolation { peer, .. } if *peer == violator),
        "{error}"
    );
    assert!(error.to_string().contains(text), "{error}");
}

/// Ends all messages, and asserts that each has ended once.
#[track_caller]
fn assert_ends(mut script: Script) {
    script.messages.fail_all(&ending());
    assert!(!script.messages.is_active() && script.messages.unsent() == 0);
    let outcomes = script.outcomes();
    assert_eq!((outcomes.lost, outcomes.ended()), (0, outcomes.posted));
}

#[test]
fn grant_of_another_peer_leaves_the_send() {
    let mut script = Script::new(3);
    script.send(1, 0, 10 * SLOT_BYTES);
    script.send(2, 0, 10 * SLOT_BYTES);
    script.settle().unwrap();
    let [Frame::Request { send, .. }] = script.take_sent(1)[..] else { panic!("an announcement") };
    script.arrive(2, Frame::Grant { send, recv: 0 }, 0);
    assert_violation(script.progress(), 2, "a grant for a message that was not offered");
    assert_eq!(script.outcomes().lost, 0, "the send waits for its own receiver");
    assert_ends(script);
}

#[test]
fn announcements_are_bounded_at_the_receiver() {
    let mut script = Script::new(2);
    // A receive of something else, so that the frames are taken.
    script.receive(Some(1), Some(u64::MAX >> 1), 0);
    let announce = |send| Frame::Request { tag: send, bytes: 1 << 20, send };
    let limit = super::ANNOUNCED_MAX as u64;
    (0..limit).for_each(|send| script.arrive(1, announce(send), 0));
    script.settle().unwrap();
    assert_eq!(script.taken(1), limit as usize);
    // A grant makes room for one more.
    script.receive(Some(1), Some(5), 1 << 20);
    script.arrive(1, announce(limit), 0);
    script.settle().unwrap();
    script.arrive(1, announce(limit + 1), 0);
    assert_violation(script.progress(), 1, "more announcements than a receiver stores");
    assert_ends(script);
}

#[test]
fn sender_holds_what_its_receiver_has_no_room_for() {
    let mut script = Script::new(2);
    let limit = super::ANNOUNCED_MAX as u64;
    // Empty messages take all credit, so that those after them are announced.
    (0..EAGER_CREDIT / EAGER_OVERHEAD).for_each(|_| script.send(1, 0, 0));
    script.settle().unwrap();
    assert_eq!(script.take_sent(1).len(), EAGER_CREDIT / EAGER_OVERHEAD);
    (0..limit + 2).for_each(|tag| script.send(1, tag, 1));
    // A message that needs less keeps its place behind those that are held.
    script.send(1, limit + 2, 0);
    script.settle().unwrap();
    let sends: Vec<u64> = script.take_sent(1).iter().map(announced).collect();
    assert_eq!(sends, (0..limit).collect::<Vec<_>>());
    for (send, released) in [(7, limit), (3, limit + 1)] {
        script.arrive(1, Frame::Grant { send, recv: 0 }, 0);
        script.settle().unwrap();
        let sent = script.take_sent(1);
        assert_eq!(sent.iter().filter(|frame| matches!(frame, Frame::Data { .. })).count(), 1);
        let requests = sent.iter().filter(|frame| matches!(frame, Frame::Request { .. }));
        assert_eq!(requests.map(announced).collect::<Vec<_>>(), [released]);
    }
    script.arrive(1, Frame::Credit { bytes: EAGER_CREDIT as u64 / 2 }, 0);
    script.settle().unwrap();
    assert_eq!(script.take_sent(1), [Frame::Eager { tag: limit + 2 }]);
    assert_ends(script);
}

fn announced(frame: &Frame) -> u64 {
    let Frame::Request { tag, .. } = frame else { panic!("{frame:?} is no announcement") };
    *tag
}

#[test]
fn frames_that_move_nothing_are_violations() {
    let mut script = Script::new(2);
    script.receive(Some(1), None, 100);
    script.arrive(1, Frame::Credit { bytes: 0 }, 0);
    assert_violation(script.progress(), 1, "credit for bytes that were never sent");
    assert_ends(script);

    let mut script = Script::new(2);
    script.receive(Some(1), None, 2 * SLOT_BYTES);
    script.arrive(1, Frame::Request { tag: 0, bytes: 2 * SLOT_BYTES as u64, send: 0 }, 0);
    script.settle().unwrap();
    let [Frame::Grant { recv, .. }] = script.take_sent(1)[..] else { panic!("a grant") };
    script.arrive(1, Frame::Data { recv, offset: 0 }, 0);
    assert_violation(script.progress(), 1, "data without a byte");
    assert_ends(script);
}

#[test]
fn empty_message_without_credit_arrives() {
    let mut script = Script::new(2);
    script.receive(Some(1), None, 0);
    script.arrive(1, Frame::Request { tag: 4, bytes: 0, send: 0 }, 0);
    script.settle().unwrap();
    let [Frame::Grant { recv, .. }] = script.take_sent(1)[..] else { panic!("a grant") };
    script.arrive(1, Frame::Data { recv, offset: 0 }, 0);
    script.settle().unwrap();
    assert_eq!(script.outcomes().receives[0].as_ref().unwrap().tag, 4);
    assert_ends(script);
}

/// A look that took all frames of a fast peer would never end.
#[test]
fn look_takes_a_bounded_number_of_frames() {
    let mut script = Script::new(2);
    script.receive(Some(1), Some(1), 8);
    (0..1000).for_each(|_| script.arrive(1, Frame::Eager { tag: 0 }, 8));
    assert!(script.progress().unwrap());
    assert_eq!(script.taken(1), super::FRAMES_PER_LOOK);
    script.arrive(1, Frame::Eager { tag: 1 }, 8);
    assert_eq!(script.probe(Some(1), Some(2)).unwrap(), None);
    assert_eq!(script.taken(1), 1001, "a probe finds all that has arrived");
    (0..1000).for_each(|_| script.send(1, 0, 8));
    assert!(script.progress().unwrap());
    assert_eq!(script.take_sent(1).len(), super::FRAMES_PER_LOOK);
    assert_ends(script);
}

#[test]
fn stored_messages_of_a_peer_that_has_left_are_received() {
    const BYTES: usize = 60_000;
    let mut script = Script::new(2);
    script.receive(Some(1), Some(1), 0);
    (0..30).for_each(|_| script.arrive(1, Frame::Eager { tag: 0 }, BYTES));
    script.arrive(1, Frame::Request { tag: 2, bytes: 1 << 20, send: 0 }, 0);
    script.settle().unwrap();
    script.messages.fail_peer(1, &ending());
    (0..30).for_each(|_| script.receive(Some(1), Some(0), BYTES));
    assert_eq!(script.outcomes().receives.iter().filter(|result| result.is_ok()).count(), 30);
    // Nobody takes credit or grants any more, and what was only announced never comes.
    script.receive(Some(1), Some(2), 1 << 20);
    script.settle().unwrap();
    assert!(script.take_sent(1).is_empty());
    // The store is empty again.
    script.receive(Some(1), Some(3), 0);
    (0..30).for_each(|_| script.arrive(1, Frame::Eager { tag: 0 }, BYTES));
    script.settle().unwrap();
    assert_ends(script);
}

#[test]
fn message_longer_than_memory_is_a_violation() {
    let mut script = Script::new(2);
    script.arrive(1, Frame::Request { tag: 0, bytes: 1 << 63, send: 0 }, 0);
    assert_violation(script.probe(None, None), 1, "an impossible length");
}

#[test]
fn credit_beyond_the_store_is_a_violation() {
    let mut script = Script::new(2);
    script.receive(Some(1), Some(1), 0);
    (0..100).for_each(|_| script.arrive(1, Frame::Eager { tag: 0 }, SLOT_BYTES));
    assert_violation(script.settle(), 1, "more bytes than it has credit for");
    assert_ends(script);
}
