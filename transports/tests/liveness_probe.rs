//! A connection for notes that was reset tells nothing of the rank at its other end: that one's door does.

#![cfg(not(loom))]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono_transports::control::RemoteControl;
use unisono_transports::secure::handshake::{HandshakeConfig, Secret};
use unisono_transports::sys::listener::Listener;
use unisono_transports::tcp::connect::acceptor::Acceptor;
use unisono_transports::tcp::connect::lazy_link::DialContext;
use unisono_transports::{ControlChannel, Geometry, PeerEvent};

const SESSION: u64 = 7;
const SECOND: Duration = Duration::from_secs(1);
const GEOMETRY: Geometry =
    Geometry { lanes: 1, slots: 2, slot_bytes: 64, signal_lanes: 1, window_bytes: 0, heap_bytes: 0 };

fn handshake_config(encrypted: bool) -> HandshakeConfig {
    HandshakeConfig { secret: Secret::random().expect("randomness"), encrypt: encrypted }
}

fn listener() -> (Listener, SocketAddr) {
    let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.address().expect("one");
    (listener, address)
}

/// The door of `rank` of two in a meeting, and where it is.
fn spawn_acceptor(terms: &HandshakeConfig, session: u64, rank: usize) -> (Acceptor, SocketAddr) {
    let (listener, address) = listener();
    (Acceptor::spawn(listener, terms, session, (rank, 2), 1).expect("a thread"), address)
}

/// The control path of one of two ranks, over a connection to the other, whose door is at `door`; where its own is; and the
/// other end of the connection.
fn rank(
    rank: usize,
    door: SocketAddr,
    terms: &HandshakeConfig,
    patience: Duration,
) -> (RemoteControl, SocketAddr, TcpStream) {
    let (acceptor, own) = spawn_acceptor(terms, SESSION, rank);
    let common = DialContext {
        rank,
        ranks: 2,
        session: SESSION,
        terms: terms.clone(),
        sockets: 1,
        geometry: GEOMETRY,
        timeout: patience,
        acceptor: acceptor,
        watcher: None,
    };
    let (listener, address) = listener();
    let far = TcpStream::connect(address).expect("a connection");
    let near = listener.accept().expect("it is sound").expect("it has come");
    let (streams, doors) = match rank {
        0 => (vec![None, Some(near)], [own, door]),
        _ => (vec![Some(near), None], [door, own]),
    };
    let sockets = RemoteControl::new(streams).expect("sockets").with_probe(Arc::new(common), &doors);
    (sockets, own, far)
}

/// Rank 0, as above, whose connection has just been reset.
fn reset(door: SocketAddr, terms: &HandshakeConfig, patience: Duration) -> RemoteControl {
    let (mut near, _, far) = rank(0, door, terms, patience);
    near.post(b"never read");
    let arrived = Instant::now() + SECOND;
    while far.peek(&mut [0; 4]).expect("it is sound") < 4 && Instant::now() < arrived {}
    drop(far);
    near
}

/// What is told next, and after how long.
fn next_event(control: &mut RemoteControl) -> (PeerEvent, Duration) {
    let begun = Instant::now();
    loop {
        if let Some(event) = control.poll() {
            return (event, begun.elapsed());
        }
        assert!(begun.elapsed() < 10 * SECOND, "nothing is told");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const RESET: PeerEvent = PeerEvent::Reset { from: 1 };
const EXITED: PeerEvent = PeerEvent::Exited { from: 1 };

#[test]
fn answering_peer_is_alive() {
    for encrypted in [false, true] {
        let terms = handshake_config(encrypted);
        let (_doorman, door) = spawn_acceptor(&terms, SESSION, 1);
        let mut near = reset(door, &terms, 5 * SECOND);
        let (event, after) = next_event(&mut near);
        assert!(event == RESET && after < SECOND, "{event:?} after {after:?}, encrypted: {encrypted}");
        assert_eq!(near.poll(), None, "it is told once");
    }
}

#[test]
fn refused_probe_means_exited() {
    let (terms, door) = (handshake_config(false), listener().1);
    let (event, after) = next_event(&mut reset(door, &terms, 5 * SECOND));
    assert!(event == EXITED && after < SECOND / 2, "{event:?} after {after:?}");
}

#[test]
fn orderly_close_needs_no_probe() {
    let terms = handshake_config(false);
    let (_doorman, door) = spawn_acceptor(&terms, SESSION, 1);
    let (mut near, _, far) = rank(0, door, &terms, 5 * SECOND);
    drop(far);
    assert_eq!(next_event(&mut near).0, EXITED);
}

/// Somebody who says nothing, who is of another meeting, or of another job.
#[test]
fn inconclusive_probe_does_not_prove_exit() {
    let (own, patience) = (handshake_config(false), SECOND / 2);
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let (_later, of_another_meeting) = spawn_acceptor(&own, SESSION + 1, 1);
    let (_stranger, of_another_job) = spawn_acceptor(&handshake_config(false), SESSION, 1);
    for door in [silent.local_addr().expect("one"), of_another_meeting, of_another_job] {
        let (event, after) = next_event(&mut reset(door, &own, patience));
        assert!(event == RESET && after < 2 * SECOND, "{event:?} after {after:?}");
        assert!(door == of_another_job || after >= patience * 9 / 10, "given up after {after:?}");
    }
}

/// The connections of a process are closed one after the other: some have come in, and hear nothing.
#[test]
fn probe_retries_closing_listener() {
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut near = reset(door.local_addr().expect("one"), &handshake_config(false), 5 * SECOND);
    let shutting = std::thread::spawn(move || (0..3).for_each(|_| drop(door.accept().expect("a guest"))));
    let (event, after) = next_event(&mut near);
    shutting.join().expect("no panic");
    assert!(event == EXITED && after < SECOND, "{event:?} after {after:?}");
}

#[test]
fn late_poll_still_sees_probe_answer() {
    let (terms, patience) = (handshake_config(false), SECOND / 5);
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut near = reset(door.local_addr().expect("one"), &terms, patience);
    assert_eq!(near.poll(), None, "nobody has answered");
    drop(door);
    std::thread::sleep(2 * patience);
    assert_eq!(next_event(&mut near).0, EXITED);
}

#[test]
fn listener_guard_keeps_listener_open() {
    let terms = handshake_config(false);
    let (peer, door, _far) = rank(1, listener().1, &terms, SECOND);
    let held = peer.listener_guard().expect("it has one");
    drop(peer);
    assert_eq!(next_event(&mut reset(door, &terms, 5 * SECOND)).0, RESET);
    drop(held);
    let begun = Instant::now();
    while next_event(&mut reset(door, &terms, 5 * SECOND)).0 != EXITED {
        assert!(begun.elapsed() < 2 * SECOND, "nobody holds it any more");
    }
}
