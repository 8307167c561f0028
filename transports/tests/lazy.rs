//! Links over TCP that connect when they are first used do all that links do, and nothing before.

#![cfg(not(loom))]

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use unisono_transports::auth::Secret;
use unisono_transports::control::Sockets;
use unisono_transports::doorman::Doorman;
use unisono_transports::lazy::{Dialling, LazyLink};
use unisono_transports::listener::Listener;
use unisono_transports::pace::Patience;
use unisono_transports::socket::Stream;
use unisono_transports::{Error, Geometry, Link, Mesh, Tag, conformance};

conformance!(over_lazy_links, |ranks, geometry| meshes(ranks, geometry, 2));

fn meshes(ranks: usize, geometry: Geometry, sockets: usize) -> Vec<Mesh> {
    let secret = Secret::random().expect("randomness");
    let listener = |_| Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let listeners: Vec<_> = (0..ranks).map(listener).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.address().expect("one")).collect();
    let mesh = |((rank, listener), control): ((usize, Listener), Sockets)| {
        let doorman = Doorman::hire(listener, &secret, 7, (rank, ranks), sockets).expect("a thread");
        let pace = Patience::new(ranks).watching(control.watch().expect("descriptors"));
        let watcher = pace.watcher();
        doorman.wake(watcher.clone().expect("a watcher"));
        let (secret, patience) = (secret.clone(), Duration::from_secs(5));
        let common =
            Dialling { rank, ranks, session: 7, secret, sockets, geometry, patience, doorman, watcher };
        let common = Arc::new(common);
        let link = |(peer, &address)| {
            let link = LazyLink::new(Arc::clone(&common), peer, address);
            (peer != rank).then(|| Box::new(link) as Box<dyn Link>)
        };
        let links = addresses.iter().enumerate().map(link).collect();
        let (control, pace) = (Box::new(control), Box::new(pace));
        Mesh { rank, ranks, geometry, links, window: None, control, pace, transport: "tcp" }
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
        assert!(send(&mut meshes[2], peer).expect("a sound link"), "the first attempt connects");
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
    assert!(send(&mut meshes[3], 5).expect("a sound link"));
    assert_eq!(sockets(), idle + 4, "two connections with two ends each");
    drop(meshes);
    let begun = Instant::now();
    while sockets() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(2), "{} sockets are left", sockets());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_peer_whose_door_is_shut_is_lost_soon() {
    let mut meshes = meshes(2, SMALL, 2);
    drop(meshes.remove(1));
    let mut mesh = meshes.remove(0);
    let begun = Instant::now();
    let error = loop {
        match send(&mut mesh, 1) {
            Ok(sent) => assert!(!sent, "nobody can have taken it"),
            Err(error) => break error,
        }
        assert!(begun.elapsed() < Duration::from_secs(2));
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(error, Error::Lost { peer: 1, .. }), "{error}");
}
