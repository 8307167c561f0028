//! Encrypted jobs: no byte of the bootstrap is readable on the network, and ranks that disagree
//! about encryption get an error.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use support::World;
use unisono::{BootstrapError, Communicator, Config, ErrorKind, Sum, Transport, UniqueId};
use unisono_transports::secure::handshake::Secret;
use unisono_transports::testing::{HANG, NEVER};

fn config(encryption: bool) -> Config {
    let timeout = Duration::from_secs(10);
    Config::default()
        .with_encryption(encryption)
        .with_transport(Transport::Tcp)
        .with_timeout(timeout)
        .with_join_timeout(timeout)
}

fn id() -> UniqueId {
    UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an id")
}

/// Copies until the end; what it saw.
fn relay(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen.extend(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    seen
}

/// Returns the bytes of a successful bootstrap between rank 1 and rank 0, as an observer on the
/// network sees them.
fn capture_bootstrap(encryption: bool) -> Vec<u8> {
    let id = id();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let text = id.to_string();
    let (_, secret) = text.split_once('/').expect("an address and a secret");
    let detour =
        format!("{}/{secret}", listener.local_addr().expect("one")).parse::<UniqueId>().expect("an id");
    let (seen_by, seen) = channel();
    let root = id.address();
    thread::spawn(move || {
        let (near, _) = listener.accept().expect("rank 1");
        let end = Instant::now() + Duration::from_secs(10);
        let far = loop {
            match TcpStream::connect(root) {
                Ok(far) => break far,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        let (entry, exit) = (near.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
        let way = thread::spawn(move || relay(entry, exit));
        let back = relay(far, near);
        let _ = seen_by.send([way.join().expect("no panic"), back].concat());
    });
    thread::scope(|scope| {
        for (rank, id) in [id, detour].into_iter().enumerate() {
            scope.spawn(move || {
                let config = config(encryption).with_host(format!("the host of rank {rank}"));
                let comm = Communicator::join(&id, rank, 2, &config).expect("they meet");
                let mut sum = [1.0f32];
                comm.all_reduce(&mut sum, Sum).expect("a sum");
                assert_eq!(sum, [2.0]);
            });
        }
    });
    seen.recv_timeout(Duration::from_secs(10)).expect("it was carried")
}

#[test]
fn encrypted_bootstrap_is_unreadable() {
    let is_in = |seen: &[u8], text: &[u8]| seen.windows(text.len()).any(|window| window == text);
    let (plain, sealed) = (capture_bootstrap(false), capture_bootstrap(true));
    for name in [&b"the host of rank 0"[..], b"the host of rank 1"] {
        assert!(is_in(&plain, name), "this test sees nothing at all");
        assert!(!is_in(&sealed, name));
    }
}

#[test]
fn encryption_mismatch_fails_all_ranks() {
    for root_encrypts in [false, true] {
        let (id, begun) = (id(), Instant::now());
        let join = |rank: usize| {
            let id = id.clone();
            // The one that differs comes when the others wait already.
            thread::sleep(Duration::from_millis(if rank == 2 { 200 } else { 0 }));
            let config = config(root_encrypts != (rank == 2)).with_join_timeout(NEVER);
            Communicator::join(&id, rank, 3, &config).map(drop).unwrap_err()
        };
        let join = &join;
        let errors = thread::scope(|scope| {
            [0, 1, 2].map(|rank| scope.spawn(move || join(rank))).map(|rank| rank.join().expect("no panic"))
        });
        assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
        for error in errors {
            let ErrorKind::Bootstrap(BootstrapError::Settings { ranks, .. }) = error.kind() else {
                panic!("{error}")
            };
            assert!(ranks.contains(&0) && ranks.contains(&2), "{error}");
            let text = error.to_string();
            assert!(["encryption on", "encryption off"].iter().all(|told| text.contains(told)), "{text}");
        }
    }
}

#[test]
fn a_wrong_secret_is_refused() {
    let id = id();
    let other = UniqueId::from_parts(id.address(), Secret::random().expect("randomness"));
    thread::scope(|scope| {
        let refused = scope.spawn(|| Communicator::join(&other, 1, 2, &config(true)).map(drop).unwrap_err());
        let short = config(true).with_join_timeout(Duration::from_millis(700));
        Communicator::join(&id, 0, 2, &short).map(drop).unwrap_err();
        let refused = refused.join().expect("no panic");
        let kind = refused.kind();
        assert!(matches!(kind, ErrorKind::Bootstrap(BootstrapError::Secret { .. })), "{refused}");
    });
}

/// Ranks that are left, groups and newcomers meet anew, on the terms of the job.
#[test]
fn survivors_keep_encryption() {
    World::Encrypted.run(3, &config(true), |comm| {
        if comm.rank() == 1 {
            return;
        }
        assert!(comm.all_reduce(&mut [0.0f32; 3000], Sum).is_err());
        let comm = comm.shrink().expect("two are left");
        assert!(comm.config().encryption);
        let half = comm.split(Some(0), 0).expect("a group").expect("of both");
        let mut sum = vec![1.0f32; 100_000];
        half.all_reduce(&mut sum, Sum).expect("a sum");
        assert!(sum.iter().all(|&value| value == 2.0));
    });
}
