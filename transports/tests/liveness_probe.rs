//! A control connection that was reset proves nothing about its peer. A probe of the peer's
//! listener does.

#![cfg(not(loom))]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono_transports::control::RemoteControl;
use unisono_transports::net::handshake::{HandshakeConfig, Secret};
use unisono_transports::net::listener::Listener;
use unisono_transports::tcp::connect::acceptor::Acceptor;
use unisono_transports::tcp::connect::lazy_link::DialContext;
use unisono_transports::testing::{HANG, NEVER};
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

/// Starts the acceptor of `rank` of two in a session, and returns it with its address.
fn spawn_acceptor(config: &HandshakeConfig, session: u64, rank: usize) -> (Acceptor, SocketAddr) {
    let (listener, address) = listener();
    (Acceptor::spawn(listener, config, session, (rank, 2), 1).expect("a thread"), address)
}

/// Makes the control channel of one of two ranks, whose peer listens at `peer_address`.
///
/// Returns it with the address of its own acceptor, and the other end of its connection.
fn rank(
    rank: usize,
    peer_address: SocketAddr,
    config: &HandshakeConfig,
    timeout: Duration,
) -> (RemoteControl, SocketAddr, TcpStream) {
    let (acceptor, own) = spawn_acceptor(config, SESSION, rank);
    let common = DialContext {
        rank,
        ranks: 2,
        session: SESSION,
        terms: config.clone(),
        sockets: 1,
        geometry: GEOMETRY,
        timeout,
        acceptor,
        watcher: None,
    };
    let (listener, address) = listener();
    let far = TcpStream::connect(address).expect("a connection");
    let near = listener.accept().expect("it is sound").expect("it has come");
    let (streams, addresses) = match rank {
        0 => (vec![None, Some(near)], [own, peer_address]),
        _ => (vec![Some(near), None], [peer_address, own]),
    };
    let sockets = RemoteControl::new(streams).expect("sockets").with_probe(Arc::new(common), &addresses);
    (sockets, own, far)
}

/// Makes the control channel of rank 0, and resets its connection.
fn reset(address: SocketAddr, config: &HandshakeConfig, timeout: Duration) -> RemoteControl {
    let (mut near, _, far) = rank(0, address, config, timeout);
    near.post(b"never read");
    let arrived = Instant::now() + HANG;
    while far.peek(&mut [0; 4]).expect("it is sound") < 4 && Instant::now() < arrived {}
    drop(far);
    near
}

/// Returns the next event and the time until it came.
fn next_event(control: &mut RemoteControl) -> (PeerEvent, Duration) {
    let begun = Instant::now();
    loop {
        if let Some(event) = control.poll() {
            return (event, begun.elapsed());
        }
        assert!(begun.elapsed() < HANG, "there is no event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const RESET: PeerEvent = PeerEvent::Reset { from: 1 };
const EXITED: PeerEvent = PeerEvent::Exited { from: 1 };

#[test]
fn answering_peer_is_alive() {
    for encrypted in [false, true] {
        let config = handshake_config(encrypted);
        let (_acceptor, address) = spawn_acceptor(&config, SESSION, 1);
        let mut near = reset(address, &config, NEVER);
        let (event, after) = next_event(&mut near);
        assert!(event == RESET && after < HANG, "{event:?} after {after:?}, encrypted: {encrypted}");
        assert_eq!(near.poll(), None, "the event is reported once");
    }
}

#[test]
fn refused_probe_means_exited() {
    let (config, address) = (handshake_config(false), listener().1);
    let (event, after) = next_event(&mut reset(address, &config, NEVER));
    assert!(event == EXITED && after < HANG, "{event:?} after {after:?}");
}

#[test]
fn orderly_close_needs_no_probe() {
    let config = handshake_config(false);
    let (_acceptor, address) = spawn_acceptor(&config, SESSION, 1);
    let (mut near, _, far) = rank(0, address, &config, NEVER);
    drop(far);
    assert_eq!(next_event(&mut near).0, EXITED);
}

/// The listener is silent, belongs to another session, or belongs to another job.
#[test]
fn inconclusive_probe_does_not_prove_exit() {
    let (own, timeout) = (handshake_config(false), SECOND / 2);
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let (_session, other_session) = spawn_acceptor(&own, SESSION + 1, 1);
    let (_job, other_job) = spawn_acceptor(&handshake_config(false), SESSION, 1);
    for address in [silent.local_addr().expect("one"), other_session, other_job] {
        let (event, after) = next_event(&mut reset(address, &own, timeout));
        assert!(event == RESET && after < HANG, "{event:?} after {after:?}");
        assert!(address == other_job || after >= timeout * 9 / 10, "the probe ended after {after:?}");
    }
}

/// A process that ends closes its connections one after the other. Some were accepted and get no
/// answer.
#[test]
fn probe_retries_closing_listener() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut near = reset(listener.local_addr().expect("one"), &handshake_config(false), NEVER);
    let shutting =
        std::thread::spawn(move || (0..3).for_each(|_| drop(listener.accept().expect("a connection"))));
    let (event, after) = next_event(&mut near);
    shutting.join().expect("no panic");
    assert!(event == EXITED && after < HANG, "{event:?} after {after:?}");
}

#[test]
fn late_poll_still_sees_probe_answer() {
    let (config, timeout) = (handshake_config(false), SECOND / 5);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut near = reset(listener.local_addr().expect("one"), &config, timeout);
    assert_eq!(near.poll(), None, "no answer has come");
    drop(listener);
    std::thread::sleep(2 * timeout);
    assert_eq!(next_event(&mut near).0, EXITED);
}

#[test]
fn listener_guard_keeps_listener_open() {
    let config = handshake_config(false);
    let (peer, address, _far) = rank(1, listener().1, &config, SECOND);
    let held = peer.listener_guard().expect("it has one");
    drop(peer);
    assert_eq!(next_event(&mut reset(address, &config, NEVER)).0, RESET);
    drop(held);
    let begun = Instant::now();
    while next_event(&mut reset(address, &config, NEVER)).0 != EXITED {
        assert!(begun.elapsed() < HANG, "the last guard is gone");
    }
}
