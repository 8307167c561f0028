//! Links over TCP that connect when they are first used do all that links do, and nothing before.

#![cfg(not(loom))]

use std::collections::HashSet;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use unisono_transports::auth::{Secret, Terms};
use unisono_transports::control::Sockets;
use unisono_transports::doorman::Doorman;
use unisono_transports::lazy::{Dialling, LazyLink};
use unisono_transports::listener::Listener;
use unisono_transports::pace::Patience;
use unisono_transports::socket::Stream;
use unisono_transports::{Error, Geometry, Link, Mesh, Tag, conformance};

conformance!(over_lazy_links, |ranks, geometry| meshes(ranks, geometry, 2));
conformance!(over_lazy_encrypted_links, |ranks, geometry| on_terms(ranks, geometry, 2, true));

fn meshes(ranks: usize, geometry: Geometry, sockets: usize) -> Vec<Mesh> {
    on_terms(ranks, geometry, sockets, false)
}

fn on_terms(ranks: usize, geometry: Geometry, sockets: usize, encrypted: bool) -> Vec<Mesh> {
    let terms = Terms { secret: Secret::random().expect("randomness"), encrypted };
    let listener = |_| Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let listeners: Vec<_> = (0..ranks).map(listener).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.address().expect("one")).collect();
    let mesh = |((rank, listener), control): ((usize, Listener), Sockets)| {
        let doorman = Doorman::hire(listener, &terms, 7, (rank, ranks), sockets).expect("a thread");
        let pace = Patience::new(ranks).watching(control.watch().expect("descriptors"));
        let watcher = pace.watcher();
        doorman.wake(watcher.clone().expect("a watcher"));
        let (terms, patience) = (terms.clone(), conformance::PATIENCE);
        let common =
            Dialling { rank, ranks, session: 7, terms, sockets, geometry, patience, doorman, watcher };
        let common = Arc::new(common);
        let link = |(peer, &address)| {
            let link = LazyLink::new(Arc::clone(&common), peer, address);
            (peer != rank).then(|| Box::new(link) as Box<dyn Link>)
        };
        let links = addresses.iter().enumerate().map(link).collect();
        let (control, pace) = (Box::new(control), Box::new(pace));
        Mesh { rank, ranks, geometry, links, window: None, control, pace, transport: "tcp", crowded: false }
    };
    listeners.into_iter().enumerate().zip(controls(ranks)).map(mesh).collect()
}

fn controls(ranks: usize) -> Vec<Sockets> {
    let mut streams: Vec<Vec<Option<Stream>>> = (0..ranks).map(|_| Vec::new()).collect();
    for rank in 0..ranks {
        for peer in 0..rank {
            let (near, far) = UnixStream::pair().expect("a pair");
            streams[rank].push(Some(Stream::Unix(near)));
            streams[peer].push(Some(Stream::Unix(far)));
        }
        streams[rank].push(None);
    }
    streams.into_iter().map(|streams| Sockets::new(streams).expect("sockets")).collect()
}

const SMALL: Geometry =
    Geometry { lanes: 1, slots: 2, slot_bytes: 64, channels: 1, window_bytes: 4096, heap_bytes: 0 };

/// Sockets of this process, however many descriptors each has.
fn sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("linux");
    let names = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets = names.filter(|name| name.to_string_lossy().starts_with("socket:"));
    sockets.collect::<HashSet<_>>().len()
}

fn send(mesh: &mut Mesh, peer: usize) -> Result<bool, Error> {
    let link = mesh.links[peer].as_mut().expect("a link");
    link.try_send(0, &Tag([3; 4]), 5, &mut std::iter::once((&b"hello"[..]).into()))
}

/// Sends, after as many attempts as it takes to connect.
fn connect_and_send(mesh: &mut Mesh, peer: usize) {
    let begun = Instant::now();
    for rounds in 0.. {
        if send(mesh, peer).expect("a sound link") {
            return;
        }
        assert!(begun.elapsed() < conformance::PATIENCE, "rank {} waits for ever", mesh.rank);
        mesh.pace.pause(rounds);
    }
}

/// Whether a message is there, and it is the one.
fn receive(mesh: &mut Mesh, peer: usize) -> bool {
    let link = mesh.links[peer].as_mut().expect("a link");
    let Some(head) = link.head(0).expect("a sound link") else { return false };
    let mut body = [0; 5];
    assert_eq!((head.tag, head.bytes), (Tag([3; 4]), 5));
    let taken = link.take(0, body[..].as_mut().into()).expect("a sound link");
    assert!(!taken || body == *b"hello");
    taken
}

/// Both send at the same moment, again and again with fresh links: there is one set of connections, and
/// both messages arrive.
#[test]
fn two_that_dial_at_once_agree() {
    for round in 0..200 {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for mut mesh in meshes(2, SMALL, 1 + round % 3) {
                let start = &start;
                scope.spawn(move || {
                    let (peer, begun, mut rounds) = (1 - mesh.rank, Instant::now(), 0);
                    start.wait();
                    let (mut sent, mut received) = (false, false);
                    while !(sent && received) {
                        sent = sent || send(&mut mesh, peer).expect("a sound link");
                        received = received || receive(&mut mesh, peer);
                        assert!(
                            begun.elapsed() < Duration::from_secs(5),
                            "rank {} waits for ever",
                            mesh.rank
                        );
                        rounds += 1;
                        mesh.pace.pause(rounds);
                    }
                    start.wait();
                });
            }
        });
    }
}

/// A rank that computes, and calls nothing, keeps nobody waiting who sends to it.
#[test]
fn sending_needs_no_help_of_the_receiver() {
    let mut meshes = meshes(3, SMALL, 2);
    let begun = Instant::now();
    for peer in [0, 1] {
        connect_and_send(&mut meshes[2], peer);
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
    for peer in [0, 1] {
        let arrived = |mesh: &mut Mesh| {
            (0..10_000).any(|rounds| {
                mesh.pace.pause(rounds);
                receive(mesh, 2)
            })
        };
        assert!(arrived(&mut meshes[peer]));
    }
}

#[test]
fn nothing_is_connected_before_it_is_used() {
    // A process of its own, because other tests open sockets.
    if std::env::var_os("UNISONO_TEST_ALONE").is_none() {
        let test = std::env::current_exe().expect("this test");
        let arguments = ["--exact", "nothing_is_connected_before_it_is_used"];
        let alone = std::process::Command::new(test).args(arguments).env("UNISONO_TEST_ALONE", "1").output();
        let output = alone.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let mut meshes = meshes(8, SMALL, 2);
    let idle = sockets();
    // A listener each, and a pair of sockets for the notes of every two.
    assert_eq!(idle, 8 + 8 * 7);
    connect_and_send(&mut meshes[3], 5);
    assert_eq!(sockets(), idle + 4, "two connections with two ends each");
    drop(meshes);
    let begun = Instant::now();
    while sockets() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(2), "{} sockets are left", sockets());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Why a message to rank 1 cannot be sent, within ten seconds; no attempt waits.
fn failure(mesh: &mut Mesh) -> Error {
    let begun = Instant::now();
    loop {
        let tried = Instant::now();
        match send(mesh, 1) {
            Ok(sent) => assert!(!sent, "nobody can have taken it"),
            Err(error) => return error,
        }
        assert!(tried.elapsed() < Duration::from_secs(1), "an attempt waited: {:?}", tried.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_peer_whose_door_is_shut_is_lost_soon() {
    let mut meshes = meshes(2, SMALL, 2);
    drop(meshes.remove(1));
    let error = failure(&mut meshes[0]);
    assert!(matches!(error, Error::Lost { peer: 1, .. }), "{error}");
}

/// Rank 0 of two, whose link leads to rank 1 at `address`, with so much patience.
fn caller(address: SocketAddr, terms: &Terms, patience: Duration) -> Mesh {
    let (rank, ranks, sockets, geometry, terms) = (0, 2, 2, SMALL, terms.clone());
    let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let doorman = Doorman::hire(listener, &terms, 7, (rank, ranks), sockets).expect("a thread");
    let pace = Patience::new(ranks).watching(Vec::new());
    let watcher = pace.watcher();
    let common = Dialling { rank, ranks, session: 7, terms, sockets, geometry, patience, doorman, watcher };
    let links = vec![None, Some(Box::new(LazyLink::new(Arc::new(common), 1, address)) as Box<dyn Link>)];
    let control = Box::new(controls(ranks).remove(0));
    Mesh {
        rank,
        ranks,
        geometry,
        links,
        window: None,
        control,
        pace: Box::new(pace),
        transport: "tcp",
        crowded: false,
    }
}

fn terms() -> Terms {
    Terms { secret: Secret::random().expect("randomness"), encrypted: false }
}

/// The first who come are sent away, some before they have said a word and some after.
#[test]
fn who_is_sent_away_from_a_crowded_door_comes_again() {
    let door = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let (address, terms) = (door.local_addr().expect("one"), terms());
    let mut caller = caller(address, &terms, Duration::from_secs(5));
    let crowd = std::thread::spawn(move || {
        for turn in 0..6 {
            let (mut guest, _) = door.accept().expect("a guest");
            if turn % 2 == 0 {
                guest.read_exact(&mut [0; 72]).expect("its hello");
            }
        }
        door
    });
    let begun = Instant::now();
    while !crowd.is_finished() {
        assert!(!send(&mut caller, 1).expect("it tries again"));
        assert!(begun.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
    let door = crowd.join().expect("no panic");
    door.set_nonblocking(true).expect("a socket");
    let door = Listener::Tcp(door);
    let _doorman = Doorman::hire(door, &terms, 7, (1, 2), 2).expect("a thread");
    connect_and_send(&mut caller, 1);
}

/// A rank whose peer says nothing is held up by no attempt: it can hear of an abort, or that the peer is gone.
#[test]
fn a_silent_door_holds_up_nobody_and_is_an_error_at_the_deadline() {
    let door = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = door.local_addr().expect("one");
    let error = failure(&mut caller(address, &terms(), Duration::from_secs(2)));
    let text = error.to_string();
    assert!(
        matches!(error, Error::Lost { peer: 1, .. }) && text.contains("did not let this rank in"),
        "{text}"
    );
}

#[test]
fn what_the_system_refuses_names_the_rank_that_was_dialled() {
    let nowhere = (Ipv4Addr::BROADCAST, 1).into();
    let error = failure(&mut caller(nowhere, &terms(), Duration::from_secs(5)));
    assert!(matches!(error, Error::System { .. }) && error.to_string().contains("rank 1"), "{error}");
}
