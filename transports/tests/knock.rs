//! A connection for notes that was reset tells nothing of the rank at its other end: that one's door does.

#![cfg(not(loom))]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono_transports::auth::{Secret, Terms};
use unisono_transports::control::Sockets;
use unisono_transports::doorman::Doorman;
use unisono_transports::lazy::Dialling;
use unisono_transports::listener::Listener;
use unisono_transports::{Control, Event, Geometry};

const SESSION: u64 = 7;
const SECOND: Duration = Duration::from_secs(1);
const GEOMETRY: Geometry =
    Geometry { lanes: 1, slots: 2, slot_bytes: 64, channels: 1, window_bytes: 0, heap_bytes: 0 };

fn terms(encrypted: bool) -> Terms {
    Terms { secret: Secret::random().expect("randomness"), encrypted }
}

fn listener() -> (Listener, SocketAddr) {
    let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.address().expect("one");
    (listener, address)
}

/// The door of `rank` of two in a meeting, and where it is.
fn hire(terms: &Terms, session: u64, rank: usize) -> (Doorman, SocketAddr) {
    let (listener, address) = listener();
    (Doorman::hire(listener, terms, session, (rank, 2), 1).expect("a thread"), address)
}

/// The control path of one of two ranks, over a connection to the other, whose door is at `door`; where its own is; and the
/// other end of the connection.
fn rank(
    rank: usize,
    door: SocketAddr,
    terms: &Terms,
    patience: Duration,
) -> (Sockets, SocketAddr, TcpStream) {
    let (doorman, own) = hire(terms, SESSION, rank);
    let common = Dialling {
        rank,
        ranks: 2,
        session: SESSION,
        terms: terms.clone(),
        sockets: 1,
        geometry: GEOMETRY,
        patience,
        doorman,
        watcher: None,
    };
    let (listener, address) = listener();
    let far = TcpStream::connect(address).expect("a connection");
    let near = listener.accept().expect("it is sound").expect("it has come");
    let (streams, doors) = match rank {
        0 => (vec![None, Some(near)], [own, door]),
        _ => (vec![Some(near), None], [door, own]),
    };
    let sockets = Sockets::new(streams).expect("sockets").knocking(Arc::new(common), &doors);
    (sockets, own, far)
}

/// Rank 0, as above, whose connection has just been reset.
fn reset(door: SocketAddr, terms: &Terms, patience: Duration) -> Sockets {
    let (mut near, _, far) = rank(0, door, terms, patience);
    near.post(b"never read");
    let arrived = Instant::now() + SECOND;
    while far.peek(&mut [0; 4]).expect("it is sound") < 4 && Instant::now() < arrived {}
    drop(far);
    near
}

/// What is told next, and after how long.
fn told(control: &mut Sockets) -> (Event, Duration) {
    let begun = Instant::now();
    loop {
        if let Some(event) = control.poll() {
            return (event, begun.elapsed());
        }
        assert!(begun.elapsed() < 10 * SECOND, "nothing is told");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const CUT: Event = Event::Cut { from: 1 };
const CLOSED: Event = Event::Closed { from: 1 };

#[test]
fn who_answers_at_its_door_lives() {
    for encrypted in [false, true] {
        let terms = terms(encrypted);
        let (_doorman, door) = hire(&terms, SESSION, 1);
        let mut near = reset(door, &terms, 5 * SECOND);
        let (event, after) = told(&mut near);
        assert!(event == CUT && after < SECOND, "{event:?} after {after:?}, encrypted: {encrypted}");
        assert_eq!(near.poll(), None, "it is told once");
    }
}

#[test]
fn who_listens_nowhere_has_ended() {
    let (terms, door) = (terms(false), listener().1);
    let (event, after) = told(&mut reset(door, &terms, 5 * SECOND));
    assert!(event == CLOSED && after < SECOND / 2, "{event:?} after {after:?}");
}

#[test]
fn an_orderly_end_is_one_without_asking() {
    let terms = terms(false);
    let (_doorman, door) = hire(&terms, SESSION, 1);
    let (mut near, _, far) = rank(0, door, &terms, 5 * SECOND);
    drop(far);
    assert_eq!(told(&mut near).0, CLOSED);
}

/// Somebody who says nothing, who is of another meeting, or of another job.
#[test]
fn other_answers_and_none_prove_no_end() {
    let (own, patience) = (terms(false), SECOND / 2);
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let (_later, of_another_meeting) = hire(&own, SESSION + 1, 1);
    let (_stranger, of_another_job) = hire(&terms(false), SESSION, 1);
    for door in [silent.local_addr().expect("one"), of_another_meeting, of_another_job] {
        let (event, after) = told(&mut reset(door, &own, patience));
        assert!(event == CUT && after < 2 * SECOND, "{event:?} after {after:?}");
        assert!(door == of_another_job || after >= patience * 9 / 10, "given up after {after:?}");
    }
}

/// The connections of a process are closed one after the other: some have come in, and hear nothing.
#[test]
fn a_door_that_is_just_being_shut_is_knocked_at_again() {
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut near = reset(door.local_addr().expect("one"), &terms(false), 5 * SECOND);
    let shutting = std::thread::spawn(move || (0..3).for_each(|_| drop(door.accept().expect("a guest"))));
    let (event, after) = told(&mut near);
    shutting.join().expect("no panic");
    assert!(event == CLOSED && after < SECOND, "{event:?} after {after:?}");
}

#[test]
fn an_answer_counts_however_late_one_looks() {
    let (terms, patience) = (terms(false), SECOND / 5);
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut near = reset(door.local_addr().expect("one"), &terms, patience);
    assert_eq!(near.poll(), None, "nobody has answered");
    drop(door);
    std::thread::sleep(2 * patience);
    assert_eq!(told(&mut near).0, CLOSED);
}

#[test]
fn a_door_is_open_for_as_long_as_it_is_held() {
    let terms = terms(false);
    let (peer, door, _far) = rank(1, listener().1, &terms, SECOND);
    let held = peer.door().expect("it has one");
    drop(peer);
    assert_eq!(told(&mut reset(door, &terms, 5 * SECOND)).0, CUT);
    drop(held);
    let begun = Instant::now();
    while told(&mut reset(door, &terms, 5 * SECOND)).0 != CLOSED {
        assert!(begun.elapsed() < 2 * SECOND, "nobody holds it any more");
    }
}
