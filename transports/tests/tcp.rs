//! What only sockets do: they take a message in pieces, and forget what was not read when they are closed.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use unisono_transports::{Geometry, Head, Mesh, Tag, tcp};

/// More in one message than the kernel keeps for a connection, and credit for all that is sent on a lane.
const LONG: Geometry =
    Geometry { lanes: 3, slots: 3, slot_bytes: 12 << 20, channels: 1, window_bytes: 4096, heap_bytes: 0 };

/// Runs `body` on both ranks of a fresh pair over so many sockets.
fn pair(geometry: Geometry, sockets: usize, encrypted: bool, body: impl Fn(&mut Mesh) + Sync) {
    let meshes = tcp::local_mesh(2, geometry, sockets, encrypted).expect("loopback");
    std::thread::scope(|scope| {
        for mut mesh in meshes {
            let body = &body;
            scope.spawn(move || body(&mut mesh));
        }
    });
}

/// Calls `ready` until it has something, and moves what can be moved meanwhile.
fn until<R>(mesh: &mut Mesh, mut ready: impl FnMut(&mut Mesh) -> Option<R>) -> R {
    let mut rounds = 0;
    loop {
        if let Some(result) = ready(mesh) {
            return result;
        }
        rounds += 1;
        wait(mesh, rounds);
    }
}

fn wait(mesh: &mut Mesh, rounds: u32) {
    assert!(mesh.pace.now() < Duration::from_secs(20), "rank {} waits for ever", mesh.rank);
    mesh.links.iter_mut().flatten().for_each(|link| link.progress().expect("a sound link"));
    mesh.pace.pause(rounds);
}

/// Sends in five parts and a rest; counts how often there was no room for all of it.
fn send(mesh: &mut Mesh, lane: usize, number: u64, body: &[u8], refused: &AtomicUsize) {
    let peer = 1 - mesh.rank;
    until(mesh, |mesh| {
        let mut parts = body.chunks(body.len() / 5).map(Into::into);
        let link = mesh.links[peer].as_mut()?;
        let sent = link.try_send(lane, &Tag([number; 4]), body.len(), &mut parts).expect("a sound link");
        refused.fetch_add(usize::from(!sent), Ordering::Relaxed);
        sent.then_some(())
    });
}

fn head(mesh: &mut Mesh, lane: usize) -> Head {
    let peer = 1 - mesh.rank;
    until(mesh, |mesh| mesh.links[peer].as_mut()?.head(lane).expect("a sound link"))
}

fn take(mesh: &mut Mesh, lane: usize, number: u64) -> Vec<u8> {
    let peer = 1 - mesh.rank;
    let Head { tag, bytes } = head(mesh, lane);
    assert_eq!(tag, Tag([number; 4]));
    let mut body = vec![0xee; bytes];
    until(mesh, |mesh| {
        let link = mesh.links[peer].as_mut()?;
        link.take(lane, body[..].as_mut().into()).expect("a sound link").then_some(())
    });
    body
}

/// Bytes in which every place is told from its neighbours, near and far.
fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| (index << 8 | seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

#[test]
fn a_message_longer_than_any_buffer_passes_in_pieces() {
    for (sockets, encrypted) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
        let refused = AtomicUsize::new(0);
        pair(LONG, sockets, encrypted, |mesh| {
            if mesh.rank == 1 {
                // Nothing is read before the kernel has as much as it keeps.
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
                    if mesh.rank == 1 {
                        assert!(take(mesh, lane, number) == body, "message {number} of lane {lane}");
                    } else {
                        send(mesh, lane, number, &body, &refused);
                    }
                }
            }
        });
    }
}

/// Both ends on one thread, so that it is certain how much has arrived when the receiver first asks.
#[test]
fn what_was_staged_before_it_was_asked_for_is_not_lost() {
    for encrypted in [false, true] {
        stage_and_take(tcp::local_mesh(2, LONG, 1, encrypted).expect("loopback"));
    }
}

fn stage_and_take(mut meshes: Vec<Mesh>) {
    let [near, far] = &mut meshes[..] else { panic!("two ranks") };
    let (sender, receiver) =
        (near.links[1].as_mut().expect("a link"), far.links[0].as_mut().expect("a link"));
    let body = contents(1, LONG.slot_bytes);
    let mut send = || {
        let mut parts = std::iter::once(body[..].into());
        sender.try_send(0, &Tag([1; 4]), body.len(), &mut parts).expect("a sound link")
    };
    let give_up = Instant::now() + Duration::from_secs(20);
    assert!(!send(), "the kernel took {} bytes at once: this test needs longer ones", body.len());
    // A part of the body arrives while the receiver looks elsewhere, the rest after it has asked.
    while receiver.head(0).expect("a sound link").is_none() {
        assert!(Instant::now() < give_up);
    }
    receiver.progress().expect("a sound link");
    assert!(receiver.body(0).expect("a sound link").is_none(), "all of it is here already");
    let mut seen = vec![0xee; body.len()];
    let mut sent = false;
    while !receiver.take(0, seen[..].as_mut().into()).expect("a sound link") {
        assert!(Instant::now() < give_up);
        sent = sent || send();
    }
    assert!(seen == body);
}

/// The receiver answers with credit that a closed socket takes amiss: without care, a reset would follow
/// and throw away what is still on its way.
#[test]
fn what_was_sent_last_survives_the_end_of_its_sender() {
    let geometry = Geometry { lanes: 2, slots: 8, slot_bytes: 512 << 10, ..LONG };
    let refused = AtomicUsize::new(0);
    for round in 0..6 {
        pair(geometry, 1, round % 2 == 1, |mesh| {
            // Something is always unread at the end of the sender.
            if mesh.rank == 1 {
                send(mesh, 1, 99, &[9; 100], &refused);
                std::thread::sleep(Duration::from_millis(20));
            }
            for number in 0..geometry.slots as u64 {
                let body = contents(number, geometry.slot_bytes);
                if mesh.rank == 0 {
                    send(mesh, 0, number, &body, &refused);
                } else {
                    assert!(take(mesh, 0, number) == body, "message {number}");
                }
            }
        });
    }
}
