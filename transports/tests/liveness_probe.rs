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
    let (acceptor, own_address) = spawn_acceptor(config, SESSION, rank);
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
    let remote = TcpStream::connect(address).expect("a connection");
    let local = listener.accept().expect("it is sound").expect("it has come");
    let (streams, addresses) = match rank {
        0 => (vec![None, Some(local)], [own_address, peer_address]),
        _ => (vec![Some(local), None], [peer_address, own_address]),
    };
    let sockets = RemoteControl::new(streams).expect("sockets").with_probe(Arc::new(common), &addresses);
    (sockets, own_address, remote)
}

/// Makes the control channel of rank 0, and resets its connection.
fn reset(address: SocketAddr, config: &HandshakeConfig, timeout: Duration) -> RemoteControl {
    let (mut local, _, remote) = rank(0, address, config, timeout);
    local.post(b"never read");
    let arrived = Instant::now() + HANG;
    while remote.peek(&mut [0; 4]).expect("it is sound") < 4 && Instant::now() < arrived {}
    drop(remote);
    local
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
        let mut local = reset(address, &config, NEVER);
        let (event, elapsed) = next_event(&mut local);
        assert!(event == RESET && elapsed < HANG, "{event:?} after {elapsed:?}, encrypted: {encrypted}");
        assert_eq!(local.poll(), None, "the event is reported once");
    }
}

#[test]
fn refused_probe_means_exited() {
    let (config, address) = (handshake_config(false), listener().1);
    let (event, elapsed) = next_event(&mut reset(address, &config, NEVER));
    assert!(event == EXITED && elapsed < HANG, "{event:?} after {elapsed:?}");
}

#[test]
fn orderly_close_needs_no_probe() {
    let config = handshake_config(false);
    let (_acceptor, address) = spawn_acceptor(&config, SESSION, 1);
    let (mut local, _, remote) = rank(0, address, &config, NEVER);
    drop(remote);
    assert_eq!(next_event(&mut local).0, EXITED);
}

/// The listener is silent, belongs to another session, or belongs to another job.
#[test]
fn inconclusive_probe_does_not_prove_exit() {
    let (config, timeout) = (handshake_config(false), SECOND / 2);
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let (_session, other_session) = spawn_acceptor(&config, SESSION + 1, 1);
    let (_job, other_job) = spawn_acceptor(&handshake_config(false), SESSION, 1);
    for address in [silent.local_addr().expect("one"), other_session, other_job] {
        let (event, elapsed) = next_event(&mut reset(address, &config, timeout));
        assert!(event == RESET && elapsed < HANG, "{event:?} after {elapsed:?}");
        assert!(address == other_job || elapsed >= timeout * 9 / 10, "the probe ended after {elapsed:?}");
    }
}

/// A process that ends closes its connections one after the other. Some were accepted and get no
/// answer.
#[test]
fn probe_retries_closing_listener() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut local = reset(listener.local_addr().expect("one"), &handshake_config(false), NEVER);
    let shutting =
        std::thread::spawn(move || (0..3).for_each(|_| drop(listener.accept().expect("a connection"))));
    let (event, elapsed) = next_event(&mut local);
    shutting.join().expect("no panic");
    assert!(event == EXITED && elapsed < HANG, "{event:?} after {elapsed:?}");
}

#[test]
fn late_poll_still_sees_probe_answer() {
    let (config, timeout) = (handshake_config(false), SECOND / 5);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut local = reset(listener.local_addr().expect("one"), &config, timeout);
    assert_eq!(local.poll(), None, "no answer has come");
    drop(listener);
    std::thread::sleep(2 * timeout);
    assert_eq!(next_event(&mut local).0, EXITED);
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
