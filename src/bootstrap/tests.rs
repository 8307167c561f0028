//! Ranks that end while others connect to them, and ports that nobody takes.

use crate::bootstrap::peer_info::{PeerInfo, RootReply, recv_text, send_text};
use crate::bootstrap::{RankInfo, UniqueId, connect, join, meeting_point, send_to_root};
use crate::config::{Config, Transport};
use crate::error::ErrorKind;
use crate::error::bootstrap::BootstrapError as Failure;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use unisono_transports::net::stream::Stream;
use unisono_transports::testing::{HANG, NEVER};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const RANKS: usize = 4;
const TABLE: &str = "the table has come";

fn join_config(transport: Transport) -> Config {
    Config { transport, join_timeout: NEVER, ..Config::default() }
}

fn transport(name: &str) -> Transport {
    name.parse().expect("a transport")
}

/// A rank that comes, gets the table, and then does nothing more.
fn join_and_hang(id: &str, transport: Transport) {
    let (config, soon) = (join_config(transport), Instant::now() + HANG);
    let identity = RankInfo { rank: 2, ranks: RANKS, id: id.parse().expect("an id") };
    let mut root = meeting_point::connect(&identity, &config, None, soon).expect("a root");
    let doors = connect::Listeners::bind(identity.rank, &config, LOOPBACK.into()).expect("doors");
    let record = PeerInfo::local(&identity, &config, &doors);
    send_text(&mut root, &record.encode(), soon).expect("sent");
    recv_text(&mut root, soon).expect("the table");
    println!("{TABLE}");
    std::thread::sleep(NEVER);
}

/// Not a test of its own: the process that the next one starts and kills.
#[test]
fn rank_to_be_killed() {
    if let (Ok(id), Ok(name)) = (std::env::var("TEST_MORTAL_ID"), std::env::var("TEST_MORTAL_TRANSPORT")) {
        join_and_hang(&id, transport(&name));
    }
}

fn spawn_rank_to_be_killed(id: &UniqueId, transport: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "--nocapture", "bootstrap::tests::rank_to_be_killed"]).stdout(Stdio::piped());
    command.env("TEST_MORTAL_ID", id.to_string()).env("TEST_MORTAL_TRANSPORT", transport);
    command.spawn().expect("it starts")
}

#[test]
fn rank_killed_while_connecting_is_named_at_once() {
    for name in ["shm", "tcp"] {
        let id = UniqueId::new(LOOPBACK).expect("an id");
        let mut mortal = spawn_rank_to_be_killed(&id, name);
        let (errors, elapsed) = std::thread::scope(|scope| {
            let join = |rank| {
                let identity = RankInfo { rank, ranks: RANKS, id: id.clone() };
                scope.spawn(move || {
                    join(&identity, &join_config(transport(name))).map(drop).expect_err("nobody meets")
                })
            };
            let others = [0, 1, 3].map(join);
            let mut lines =
                BufReader::new(mortal.stdout.take().expect("piped")).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.contains(TABLE)), "it never got that far");
            // The others are now connecting, and wait for this one.
            std::thread::sleep(Duration::from_millis(200));
            assert!(others.iter().all(|other| !other.is_finished()), "{name}: somebody did not wait");
            mortal.kill().expect("killed");
            let killed = Instant::now();
            let errors = others.map(|other| other.join().expect("no panic"));
            (errors, killed.elapsed())
        });
        mortal.wait().expect("reaped");
        assert!(elapsed < HANG, "{name}: it took {elapsed:?}");
        for error in errors {
            let ErrorKind::Bootstrap(failure) = error.kind() else { panic!("{error}") };
            assert!(matches!(failure, Failure::Died { rank: 2, .. }), "{name}: {error}");
        }
    }
}

#[test]
fn rank_killed_before_all_joined_is_named_at_once() {
    let id = UniqueId::new(LOOPBACK).expect("an id");
    let mut mortal = spawn_rank_to_be_killed(&id, "shm");
    let begun = std::thread::scope(|scope| {
        let identity = RankInfo { rank: 0, ranks: RANKS, id: id.clone() };
        let root =
            scope.spawn(move || join(&identity, &join_config(Transport::Shm)).map(drop).expect_err("alone"));
        std::thread::sleep(Duration::from_millis(500));
        mortal.kill().expect("killed");
        let killed = Instant::now();
        let error = root.join().expect("no panic");
        assert!(error.to_string().contains("rank 2 on "), "{error}");
        killed
    });
    mortal.wait().expect("reaped");
    assert!(begun.elapsed() < HANG, "it took {:?}", begun.elapsed());
}

#[test]
fn unique_id_reserves_port_until_rank_0_listens() {
    let id = UniqueId::new(LOOPBACK).expect("an id");
    let others: Vec<_> = (0..500).map(|_| TcpListener::bind((LOOPBACK, 0)).expect("a port")).collect();
    assert!(others.iter().all(|other| other.local_addr().expect("one") != id.address()));
    // A process that has the id as text can listen, even while this process reserves the port.
    let text: UniqueId = id.to_string().parse().expect("an id");
    let identity = RankInfo { rank: 0, ranks: 1, id: text };
    join(&identity, &join_config(Transport::Auto)).map(drop).expect("a world of one");
}

#[test]
fn join_on_used_port_fails_with_listen_error() {
    let taken = TcpListener::bind((LOOPBACK, 0)).expect("a port");
    let address = taken.local_addr().expect("one");
    let id =
        UniqueId::from_parts(address, unisono_transports::net::handshake::Secret::random().expect("random"));
    let error = join(&RankInfo { rank: 0, ranks: 1, id }, &join_config(Transport::Auto))
        .map(drop)
        .expect_err("taken");
    let ErrorKind::Bootstrap(Failure::Listen { address: named, .. }) = error.kind() else {
        panic!("{error}")
    };
    assert_eq!(*named, address.to_string());
}

/// The root says why there is no meeting, and hangs up, before this rank has said anything.
#[test]
fn send_to_closed_root_returns_its_last_failure() {
    let (local, remote) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let (mut local, mut remote) = (Stream::Unix(local), Stream::Unix(remote));
    let soon = Instant::now() + Duration::from_secs(5);
    let died = Failure::Died { rank: 2, host: "there".to_owned(), what: "it was killed".to_owned() };
    send_text(&mut remote, &RootReply::Failed(died).encode(), soon).expect("sent");
    drop(remote);
    let told = send_to_root(&mut local, "here I am", soon).expect_err("nobody hears it");
    assert!(matches!(told, Failure::Died { rank: 2, .. }), "{told:?}");
    let gone = send_to_root(&mut local, "here I am", soon).expect_err("nobody hears it");
    assert!(matches!(gone, Failure::Died { rank: 0, .. }), "{gone:?}");
}

/// Meets as three ranks, of which rank 1 cannot share memory.
fn meet_without_sharing(transport: Transport) -> Vec<crate::error::Result<unisono_transports::Fabric>> {
    let id = UniqueId::new(LOOPBACK).expect("an id");
    std::thread::scope(|scope| {
        let join = |rank| {
            let identity = RankInfo { rank, ranks: 3, id: id.clone() };
            scope.spawn(move || {
                connect::testing::DENY_SHARING.set(rank == 1);
                join(&identity, &join_config(transport))
            })
        };
        [0, 1, 2].map(join).into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn ranks_that_cannot_share_memory_use_tcp() {
    let begun = Instant::now();
    for met in meet_without_sharing(Transport::Auto) {
        assert_eq!(met.map(|fabric| fabric.transport).ok(), Some("tcp"));
    }
    assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
}

#[test]
fn shm_without_sharing_fails_on_every_rank() {
    for met in meet_without_sharing(Transport::Shm) {
        let error = met.map(drop).expect_err("no memory");
        let expected =
            matches!(error.kind(), ErrorKind::Bootstrap(Failure::SharedMemory { rank: 1, peer: 1, .. }));
        assert!(expected && error.to_string().contains("UNISONO_TRANSPORT=tcp"), "{error}");
    }
}
