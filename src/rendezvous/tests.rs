//! Ranks that end while others connect to them, and ports that nobody takes.

use super::failure::RendezvousError as Failure;
use super::record::{Record, Verdict, recv_text, send_text};
use super::{Identity, UniqueId, join, peers, reach_root, say};
use crate::config::{Config, Transport};
use crate::error::ErrorKind;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use unisono_transports::socket::Stream;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const RANKS: usize = 4;
const TABLE: &str = "the table has come";

fn patient(transport: Transport) -> Config {
    Config { transport, join_timeout: Duration::from_secs(20), ..Config::default() }
}

fn transport(name: &str) -> Transport {
    name.parse().expect("a transport")
}

/// A rank that comes, gets the table, and then does nothing more.
fn be_mortal(id: &str, transport: Transport) {
    let (config, soon) = (patient(transport), Instant::now() + Duration::from_secs(5));
    let identity = Identity { rank: 2, ranks: RANKS, id: id.parse().expect("an id") };
    let mut root = reach_root(&identity, &config, soon).expect("a root");
    let doors = peers::Doors::open(identity.rank, &config, None).expect("doors");
    let record = Record::own(&identity, &config, &doors);
    send_text(&mut root, &record.encode(), soon).expect("sent");
    recv_text(&mut root, soon).expect("the table");
    println!("{TABLE}");
    std::thread::sleep(Duration::from_secs(30));
}

/// Not a test of its own: the process that the next one starts and kills.
#[test]
fn mortal() {
    if let (Ok(id), Ok(name)) = (std::env::var("TEST_MORTAL_ID"), std::env::var("TEST_MORTAL_TRANSPORT")) {
        be_mortal(&id, transport(&name));
    }
}

fn start_mortal(id: &UniqueId, transport: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "--nocapture", "rendezvous::tests::mortal"]).stdout(Stdio::piped());
    command.env("TEST_MORTAL_ID", id.to_string()).env("TEST_MORTAL_TRANSPORT", transport);
    command.spawn().expect("it starts")
}

#[test]
fn a_rank_that_dies_while_others_connect_to_it_is_named_at_once() {
    for name in ["shm", "tcp"] {
        let id = UniqueId::new(LOOPBACK).expect("an id");
        let mut mortal = start_mortal(&id, name);
        let (errors, elapsed) = std::thread::scope(|scope| {
            let join = |rank| {
                let identity = Identity { rank, ranks: RANKS, id: id.clone() };
                scope.spawn(move || {
                    join(&identity, &patient(transport(name))).map(drop).expect_err("nobody meets")
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
        assert!(elapsed < Duration::from_millis(800), "{name}: it took {elapsed:?}");
        for error in errors {
            let ErrorKind::Rendezvous(failure) = error.kind() else { panic!("{error}") };
            assert!(matches!(failure, Failure::Died { rank: 2, .. }), "{name}: {error}");
        }
    }
}

#[test]
fn a_rank_that_dies_before_all_have_come_is_named_at_once() {
    let id = UniqueId::new(LOOPBACK).expect("an id");
    let mut mortal = start_mortal(&id, "shm");
    let begun = std::thread::scope(|scope| {
        let identity = Identity { rank: 0, ranks: RANKS, id: id.clone() };
        let root =
            scope.spawn(move || join(&identity, &patient(Transport::Shm)).map(drop).expect_err("alone"));
        std::thread::sleep(Duration::from_millis(500));
        mortal.kill().expect("killed");
        let killed = Instant::now();
        let error = root.join().expect("no panic");
        assert!(error.to_string().contains("rank 2 on "), "{error}");
        killed
    });
    mortal.wait().expect("reaped");
    // The root tells late comers for a second why there is no meeting.
    assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
}

#[test]
fn an_id_holds_its_port_until_rank_0_is_there() {
    let id = UniqueId::new(LOOPBACK).expect("an id");
    let others: Vec<_> = (0..500).map(|_| TcpListener::bind((LOOPBACK, 0)).expect("a port")).collect();
    assert!(others.iter().all(|other| other.local_addr().expect("one") != id.address()));
    // Whoever has it as text listens all the same, also while it is held here.
    let text: UniqueId = id.to_string().parse().expect("an id");
    let identity = Identity { rank: 0, ranks: 1, id: text };
    join(&identity, &patient(Transport::Auto)).map(drop).expect("a world of one");
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let taken = TcpListener::bind((LOOPBACK, 0)).expect("a port");
    let address = taken.local_addr().expect("one");
    let id = UniqueId::from_parts(address, unisono_transports::auth::Secret::random().expect("random"));
    let error =
        join(&Identity { rank: 0, ranks: 1, id }, &patient(Transport::Auto)).map(drop).expect_err("taken");
    let ErrorKind::Rendezvous(Failure::Listen { address: named, .. }) = error.kind() else {
        panic!("{error}")
    };
    assert_eq!(*named, address.to_string());
}

/// The root says why there is no meeting, and hangs up, before this rank has said anything.
#[test]
fn what_the_root_said_last_counts_and_not_that_it_is_gone() {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let (mut near, mut far) = (Stream::Unix(near), Stream::Unix(far));
    let soon = Instant::now() + Duration::from_secs(5);
    let died = Failure::Died { rank: 2, host: "there".to_owned(), what: "it was killed".to_owned() };
    send_text(&mut far, &Verdict::Failed(died).encode(), soon).expect("sent");
    drop(far);
    let told = say(&mut near, "here I am", soon).expect_err("nobody hears it");
    assert!(matches!(told, Failure::Died { rank: 2, .. }), "{told:?}");
    let gone = say(&mut near, "here I am", soon).expect_err("nobody hears it");
    assert!(matches!(gone, Failure::Died { rank: 0, .. }), "{gone:?}");
}
