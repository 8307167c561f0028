//! Lazy TCP links: they fulfill the contract of a link, and open no connection before their first
//! use.

#![cfg(not(loom))]

use std::collections::HashSet;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use unisono_transports::control::RemoteControl;
use unisono_transports::net::handshake::{HandshakeConfig, Secret};
use unisono_transports::net::listener::Listener;
use unisono_transports::net::stream::Stream;
use unisono_transports::tcp::connect::acceptor::Acceptor;
use unisono_transports::tcp::connect::lazy_link::{DialContext, LazyLink};
use unisono_transports::testing::{HANG, NEVER};
use unisono_transports::wait::AdaptiveWait;
use unisono_transports::{Error, Fabric, Geometry, Link, Tag, conformance, testing};

conformance!(over_lazy_links, |ranks, geometry| fabrics(ranks, geometry, 2));
conformance!(over_lazy_encrypted_links, |ranks, geometry| fabrics_with_encryption(ranks, geometry, 2, true));

fn fabrics(ranks: usize, geometry: Geometry, sockets: usize) -> Vec<Fabric> {
    fabrics_with_encryption(ranks, geometry, sockets, false)
}

fn fabrics_with_encryption(ranks: usize, geometry: Geometry, sockets: usize, encrypted: bool) -> Vec<Fabric> {
    let config = HandshakeConfig { secret: Secret::random().expect("randomness"), encrypt: encrypted };
    let listener = |_| Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let listeners: Vec<_> = (0..ranks).map(listener).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.address().expect("one")).collect();
    let fabric = |((rank, listener), control): ((usize, Listener), RemoteControl)| {
        let acceptor = Acceptor::spawn(listener, &config, 7, (rank, ranks), sockets).expect("a thread");
        let pace = AdaptiveWait::new(ranks).wake_on(control.event_fds().expect("descriptors"));
        let watcher = pace.watcher();
        acceptor.set_watcher(watcher.clone().expect("a watcher"));
        let (terms, timeout) = (config.clone(), testing::conformance::TIMEOUT);
        let common =
            DialContext { rank, ranks, session: 7, terms, sockets, geometry, timeout, acceptor, watcher };
        let common = Arc::new(common);
        let link = |(peer, &address)| {
            let link = LazyLink::new(Arc::clone(&common), peer, address);
            (peer != rank).then(|| Box::new(link) as Box<dyn Link>)
        };
        let links = addresses.iter().enumerate().map(link).collect();
        let (control, pace) = (Box::new(control), Box::new(pace));
        Fabric {
            rank,
            ranks,
            geometry,
            links,
            window: None,
            control,
            wait: pace,
            transport: "tcp",
            oversubscribed: false,
        }
    };
    listeners.into_iter().enumerate().zip(controls(ranks)).map(fabric).collect()
}

fn controls(ranks: usize) -> Vec<RemoteControl> {
    let mut streams: Vec<Vec<Option<Stream>>> = (0..ranks).map(|_| Vec::new()).collect();
    for rank in 0..ranks {
        for peer in 0..rank {
            let (local, remote) = UnixStream::pair().expect("a pair");
            streams[rank].push(Some(Stream::Unix(local)));
            streams[peer].push(Some(Stream::Unix(remote)));
        }
        streams[rank].push(None);
    }
    streams.into_iter().map(|streams| RemoteControl::new(streams).expect("sockets")).collect()
}

const SMALL: Geometry =
    Geometry { lanes: 1, slots: 2, slot_bytes: 64, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };

/// Number of sockets of this process. A socket with several descriptors counts once.
fn sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("linux");
    let names = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets = names.filter(|name| name.to_string_lossy().starts_with("socket:"));
    sockets.collect::<HashSet<_>>().len()
}

fn send(fabric: &mut Fabric, peer: usize) -> Result<bool, Error> {
    let link = fabric.links[peer].as_mut().expect("a link");
    link.try_send(0, &Tag([3; 4]), 5, &mut std::iter::once((&b"hello"[..]).into()))
}

/// Sends a message, with as many attempts as it takes to connect.
fn connect_and_send(fabric: &mut Fabric, peer: usize) {
    let begun = Instant::now();
    for rounds in 0.. {
        if send(fabric, peer).expect("a sound link") {
            return;
        }
        assert!(begun.elapsed() < testing::conformance::TIMEOUT, "rank {} waits for ever", fabric.rank);
        fabric.wait.pause(rounds);
    }
}

/// Receives the expected message, and returns false if none has arrived.
fn receive(fabric: &mut Fabric, peer: usize) -> bool {
    let link = fabric.links[peer].as_mut().expect("a link");
    let Some(head) = link.header(0).expect("a sound link") else { return false };
    let mut body = [0; 5];
    assert_eq!((head.tag, head.bytes), (Tag([3; 4]), 5));
    let taken = link.recv_into(0, body[..].as_mut().into()).expect("a sound link");
    assert!(!taken || body == *b"hello");
    taken
}

/// Both ranks send at the same moment over new links. They agree on one set of connections, and
/// both messages arrive.
#[test]
fn simultaneous_dials_agree() {
    for round in 0..200 {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for mut fabric in fabrics(2, SMALL, 1 + round % 3) {
                let start = &start;
                scope.spawn(move || {
                    let (peer, begun, mut rounds) = (1 - fabric.rank, Instant::now(), 0);
                    start.wait();
                    let (mut sent, mut received) = (false, false);
                    while !(sent && received) {
                        sent = sent || send(&mut fabric, peer).expect("a sound link");
                        received = received || receive(&mut fabric, peer);
                        assert!(begun.elapsed() < HANG, "rank {} waits for ever", fabric.rank);
                        rounds += 1;
                        fabric.wait.pause(rounds);
                    }
                    start.wait();
                });
            }
        });
    }
}

/// A rank that computes and makes no calls does not delay a rank that sends to it.
#[test]
fn sending_does_not_need_receiver_progress() {
    let mut fabrics = fabrics(3, SMALL, 2);
    for peer in [0, 1] {
        connect_and_send(&mut fabrics[2], peer);
    }
    for peer in [0, 1] {
        let arrived = |fabric: &mut Fabric| {
            (0..10_000).any(|rounds| {
                fabric.wait.pause(rounds);
                receive(fabric, 2)
            })
        };
        assert!(arrived(&mut fabrics[peer]));
    }
}

#[test]
fn connections_are_made_on_first_use() {
    // A process of its own, because other tests open sockets.
    if std::env::var_os("UNISONO_TEST_ALONE").is_none() {
        let test = std::env::current_exe().expect("this test");
        let arguments = ["--exact", "connections_are_made_on_first_use"];
        let alone = std::process::Command::new(test).args(arguments).env("UNISONO_TEST_ALONE", "1").output();
        let output = alone.expect("it starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    let mut fabrics = fabrics(8, SMALL, 2);
    let idle = sockets();
    // A listener for each rank, and a pair of control sockets for every two ranks.
    assert_eq!(idle, 8 + 8 * 7);
    connect_and_send(&mut fabrics[3], 5);
    assert_eq!(sockets(), idle + 4, "two connections with two ends each");
    drop(fabrics);
    let begun = Instant::now();
    while sockets() > 0 {
        assert!(begun.elapsed() < HANG, "{} sockets are left", sockets());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the error of a send to rank 1, and the number of attempts until then. No attempt waits:
/// it would wait for the timeout.
fn failure(fabric: &mut Fabric) -> (Error, usize) {
    let (begun, mut attempts) = (Instant::now(), 0);
    loop {
        attempts += 1;
        match send(fabric, 1) {
            Ok(sent) => assert!(!sent, "no peer can have taken it"),
            Err(error) => return (error, attempts),
        }
        assert!(begun.elapsed() < HANG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn peer_with_closed_listener_is_lost_soon() {
    let mut fabrics = fabrics(2, SMALL, 2);
    drop(fabrics.remove(1));
    let (error, _) = failure(&mut fabrics[0]);
    assert!(matches!(error, Error::ConnectionLost { peer: 1, .. }), "{error}");
}

/// Makes the fabric of rank 0 of two, whose link leads to rank 1 at `address`.
fn caller(address: SocketAddr, config: &HandshakeConfig, timeout: Duration) -> Fabric {
    let (rank, ranks, sockets, geometry, terms) = (0, 2, 2, SMALL, config.clone());
    let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let acceptor = Acceptor::spawn(listener, &terms, 7, (rank, ranks), sockets).expect("a thread");
    let pace = AdaptiveWait::new(ranks).wake_on(Vec::new());
    let watcher = pace.watcher();
    let common =
        DialContext { rank, ranks, session: 7, terms, sockets, geometry, timeout, acceptor, watcher };
    let links = vec![None, Some(Box::new(LazyLink::new(Arc::new(common), 1, address)) as Box<dyn Link>)];
    let control = Box::new(controls(ranks).remove(0));
    Fabric {
        rank,
        ranks,
        geometry,
        links,
        window: None,
        control,
        wait: Box::new(pace),
        transport: "tcp",
        oversubscribed: false,
    }
}

fn handshake_config() -> HandshakeConfig {
    HandshakeConfig { secret: Secret::random().expect("randomness"), encrypt: false }
}

/// The listener closes the first connections, some before they have sent a byte and some after.
#[test]
fn dial_retries_when_pool_is_full() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let (address, config) = (listener.local_addr().expect("one"), handshake_config());
    let mut caller = caller(address, &config, NEVER);
    let closing = std::thread::spawn(move || {
        for turn in 0..6 {
            let (mut stream, _) = listener.accept().expect("a connection");
            if turn % 2 == 0 {
                stream.read_exact(&mut [0; 84]).expect("the first frame");
            }
        }
        listener
    });
    let begun = Instant::now();
    while !closing.is_finished() {
        assert!(!send(&mut caller, 1).expect("it tries again"));
        assert!(begun.elapsed() < HANG);
        std::thread::sleep(Duration::from_millis(1));
    }
    let listener = closing.join().expect("no panic");
    listener.set_nonblocking(true).expect("a socket");
    let _acceptor = Acceptor::spawn(Listener::Tcp(listener), &config, 7, (1, 2), 2).expect("a thread");
    connect_and_send(&mut caller, 1);
}

/// No attempt blocks while the peer is silent, so that the rank can notice an abort or the exit of
/// the peer.
#[test]
fn silent_listener_times_out_without_blocking_others() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("one");
    let (error, attempts) = failure(&mut caller(address, &handshake_config(), Duration::from_secs(2)));
    assert!(attempts > 10, "{attempts} attempts in two seconds: they wait");
    let text = error.to_string();
    assert!(
        matches!(error, Error::ConnectionLost { peer: 1, .. })
            && text.contains("did not accept a connection"),
        "{text}"
    );
}

#[test]
fn dial_system_error_names_the_peer() {
    let nowhere = (Ipv4Addr::BROADCAST, 1).into();
    let (error, _) = failure(&mut caller(nowhere, &handshake_config(), NEVER));
    assert!(matches!(error, Error::System { .. }) && error.to_string().contains("rank 1"), "{error}");
}
