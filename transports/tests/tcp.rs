//! Behavior of sockets only: they accept a message in parts, and discard unread data when they are
//! closed.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use unisono_transports::{Fabric, Geometry, Header, Tag, loopback};

/// Messages longer than the kernel buffers for a connection, and credit for all that is sent on a
/// lane.
const LONG: Geometry =
    Geometry { lanes: 3, slots: 3, slot_bytes: 12 << 20, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };

/// Runs `body` on both ranks of a fresh pair over this many sockets.
fn pair(geometry: Geometry, sockets: usize, encrypted: bool, body: impl Fn(&mut Fabric) + Sync) {
    let fabrics = loopback::local_fabrics(2, geometry, sockets, encrypted).expect("loopback");
    std::thread::scope(|scope| {
        for mut fabric in fabrics {
            let body = &body;
            scope.spawn(move || body(&mut fabric));
        }
    });
}

/// Calls `ready` until it has a result, and makes progress meanwhile.
fn until<R>(fabric: &mut Fabric, mut ready: impl FnMut(&mut Fabric) -> Option<R>) -> R {
    let mut rounds = 0;
    loop {
        if let Some(result) = ready(fabric) {
            return result;
        }
        rounds += 1;
        wait(fabric, rounds);
    }
}

fn wait(fabric: &mut Fabric, rounds: u32) {
    assert!(fabric.wait.now() < Duration::from_secs(20), "rank {} waits for ever", fabric.rank);
    fabric.links.iter_mut().flatten().for_each(|link| link.progress().expect("a sound link"));
    fabric.wait.pause(rounds);
}

/// Sends in five parts and a rest, and counts how often there was no room for all of it.
fn send(fabric: &mut Fabric, lane: usize, number: u64, body: &[u8], refused: &AtomicUsize) {
    let peer = 1 - fabric.rank;
    until(fabric, |fabric| {
        let mut parts = body.chunks(body.len() / 5).map(Into::into);
        let link = fabric.links[peer].as_mut()?;
        let sent = link.try_send(lane, &Tag([number; 4]), body.len(), &mut parts).expect("a sound link");
        refused.fetch_add(usize::from(!sent), Ordering::Relaxed);
        sent.then_some(())
    });
}

fn head(fabric: &mut Fabric, lane: usize) -> Header {
    let peer = 1 - fabric.rank;
    until(fabric, |fabric| fabric.links[peer].as_mut()?.header(lane).expect("a sound link"))
}

fn take(fabric: &mut Fabric, lane: usize, number: u64) -> Vec<u8> {
    let peer = 1 - fabric.rank;
    let Header { tag, bytes } = head(fabric, lane);
    assert_eq!(tag, Tag([number; 4]));
    let mut body = vec![0xee; bytes];
    until(fabric, |fabric| {
        let link = fabric.links[peer].as_mut()?;
        link.recv_into(lane, body[..].as_mut().into()).expect("a sound link").then_some(())
    });
    body
}

/// Returns bytes in which every position differs from its neighbors, near and far.
fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| (index << 8 | seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

#[test]
fn message_longer_than_buffers_arrives() {
    for (sockets, encrypted) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
        let refused = AtomicUsize::new(0);
        pair(LONG, sockets, encrypted, |fabric| {
            if fabric.rank == 1 {
                // Nothing is read before the kernel's buffers are full.
                let give_up = Instant::now() + Duration::from_secs(20);
                while refused.load(Ordering::Relaxed) == 0 {
                    assert!(
                        Instant::now() < give_up,
                        "the kernel took all at once: this test needs longer messages"
                    );
                    std::thread::yield_now();
                }
            }
            for number in 0..3 {
                for lane in 0..LONG.lanes {
                    let body = contents(number << 4 | lane as u64, LONG.slot_bytes);
                    if fabric.rank == 1 {
                        assert!(take(fabric, lane, number) == body, "message {number} of lane {lane}");
                    } else {
                        send(fabric, lane, number, &body, &refused);
                    }
                }
            }
        });
    }
}

/// Both ends run on one thread, so that it is certain how much has arrived when the receiver first
/// asks.
#[test]
fn staged_body_is_kept() {
    for encrypted in [false, true] {
        stage_and_take(loopback::local_fabrics(2, LONG, 1, encrypted).expect("loopback"));
    }
}

fn stage_and_take(mut fabrics: Vec<Fabric>) {
    let [local, remote] = &mut fabrics[..] else { panic!("two ranks") };
    let (sender, receiver) =
        (local.links[1].as_mut().expect("a link"), remote.links[0].as_mut().expect("a link"));
    let body = contents(1, LONG.slot_bytes);
    let mut send = || {
        let mut parts = std::iter::once(body[..].into());
        sender.try_send(0, &Tag([1; 4]), body.len(), &mut parts).expect("a sound link")
    };
    let give_up = Instant::now() + Duration::from_secs(20);
    assert!(!send(), "the kernel took {} bytes at once: this test needs longer ones", body.len());
    // A part of the body arrives while the receiver looks elsewhere, the rest after it has asked.
    while receiver.header(0).expect("a sound link").is_none() {
        assert!(Instant::now() < give_up);
    }
    receiver.progress().expect("a sound link");
    assert!(receiver.body(0).expect("a sound link").is_none(), "all of it is here already");
    let mut seen = vec![0xee; body.len()];
    let mut sent = false;
    while !receiver.recv_into(0, seen[..].as_mut().into()).expect("a sound link") {
        assert!(Instant::now() < give_up);
        sent = sent || send();
    }
    assert!(seen == body);
}

/// The receiver answers with credit, to which a closed socket reacts with a reset. Without care,
/// the reset would discard data that is still in flight.
#[test]
fn last_message_survives_sender_exit() {
    let geometry = Geometry { lanes: 2, slots: 8, slot_bytes: 512 << 10, ..LONG };
    let refused = AtomicUsize::new(0);
    for round in 0..6 {
        pair(geometry, 1, round % 2 == 1, |fabric| {
            // Something is always unread at the end of the sender.
            if fabric.rank == 1 {
                send(fabric, 1, 99, &[9; 100], &refused);
                std::thread::sleep(Duration::from_millis(20));
            }
            for number in 0..geometry.slots as u64 {
                let body = contents(number, geometry.slot_bytes);
                if fabric.rank == 0 {
                    send(fabric, 0, number, &body, &refused);
                } else {
                    assert!(take(fabric, 0, number) == body, "message {number}");
                }
            }
        });
    }
}
