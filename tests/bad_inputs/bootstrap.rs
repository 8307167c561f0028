//! Ranks that do not belong together.

use crate::table::{Evidence, Report, Row, long_timeout, sums};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Error, Transport, UniqueId};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 23, input: "a world of 0, of 1, of too many", evidence: Evidence::Here(sizes) },
    Row { number: 24, input: "ranks disagree on the world's size", evidence: Evidence::Here(disagreeing) },
    Row { number: 25, input: "a rank that is there twice", evidence: Evidence::Here(duplicate) },
    Row { number: 26, input: "a rank that does not come", evidence: Evidence::Here(missing) },
    Row { number: 27, input: "a rank beyond the world's size", evidence: Evidence::Here(beyond) },
    Row { number: 28, input: "the id of a former run", evidence: Evidence::Here(stale) },
    Row { number: 29, input: "two jobs, one port", evidence: Evidence::Here(two_jobs) },
    Row { number: 30, input: "another version of the protocol", evidence: Evidence::Here(version) },
    Row { number: 31, input: "another byte order or word size", evidence: Evidence::There(BUILD) },
    Row { number: 32, input: "a port scanner", evidence: Evidence::There(UNAUTHENTICATED) },
    Row { number: 33, input: "one byte at a time, for ever", evidence: Evidence::There(UNAUTHENTICATED) },
    Row { number: 34, input: "a replayed handshake", evidence: Evidence::There(REPLAY) },
    Row { number: 35, input: "a wrong secret", evidence: Evidence::Here(secret) },
];

const BUILD: &[(&str, &str)] =
    &[("transports/src/lib.rs", "target_endian = \"little\", target_pointer_width = \"64\"")];
const UNAUTHENTICATED: &[(&str, &str)] = &[
    ("tests/unauthenticated_peers/main.rs", "fn unauthenticated_flood_does_not_delay_bootstrap"),
    ("tests/unauthenticated_peers/main.rs", "fn unauthenticated_flood_does_not_harm_running_job"),
];
const REPLAY: &[(&str, &str)] =
    &[("transports/src/net/handshake/tests.rs", "fn replayed_handshake_is_refused")];

/// Arguments of one rank that joins: the id, the rank, the number of ranks, and the settings.
pub(crate) type JoinArgs = (UniqueId, usize, usize, Config);

fn id() -> UniqueId {
    UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a free port")
}

fn join_args(id: &UniqueId, rank: usize, ranks: usize) -> JoinArgs {
    (id.clone(), rank, ranks, long_timeout().with_transport(Transport::Shm))
}

/// Returns [`join_args`] with a short join timeout.
fn join_args_short_timeout(id: &UniqueId, rank: usize, ranks: usize) -> JoinArgs {
    let (id, rank, ranks, config) = join_args(id, rank, ranks);
    (id, rank, ranks, config.with_join_timeout(Duration::from_millis(500)))
}

fn join((id, rank, ranks, config): &JoinArgs) -> Result<Communicator, Error> {
    Communicator::join(id, *rank, *ranks, config)
}

/// Checks that every rank gets an error that contains all of its `parts`.
pub(crate) fn run_joins(joins: Vec<(JoinArgs, &[&str])>) -> Report {
    let begun = Instant::now();
    let stories = std::thread::scope(|scope| {
        let tell = |(args, parts): (JoinArgs, &'_ [&str])| {
            let story = join(&args).map(drop).expect_err("nobody gets in").to_string();
            for part in parts {
                assert!(story.contains(part), "`{part}` is not in: {story}");
            }
            story
        };
        let threads: Vec<_> = joins.into_iter().map(|args| scope.spawn(move || tell(args))).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let time = begun.elapsed();
    let mut stories: Vec<String> = stories
        .into_iter()
        .map(|story| story.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect();
    stories.dedup();
    Report { messages: stories, time }
}

fn sizes() -> Report {
    let id = id();
    let comm = Communicator::join(&id, 0, 1, &long_timeout()).expect("a world of one");
    sums(&comm);
    assert!(Communicator::builder().config(&long_timeout()).local(0).is_err());
    run_joins(vec![
        (join_args(&id, 0, 0), &["rank 0 of 0"]),
        (join_args(&id, 3, 70_000), &["rank 3 of 70000", "at most 65536"]),
    ])
}

fn disagreeing() -> Report {
    let (id, parts): (_, &[&str]) = (id(), &["rank 1 on", "expects 3", "rank 0 expects 2"]);
    run_joins(vec![(join_args(&id, 0, 2), parts), (join_args(&id, 1, 3), parts)])
}

fn duplicate() -> Report {
    let (id, parts): (_, &[&str]) = (id(), &["rank 1 is there twice: on "]);
    run_joins([0, 1, 1].map(|rank| (join_args(&id, rank, 3), parts)).into())
}

fn missing() -> Report {
    let (id, parts): (_, &[&str]) = (id(), &["1 of 4 ranks did not come in time: 2"]);
    run_joins([0, 1, 3].map(|rank| (join_args_short_timeout(&id, rank, 4), parts)).into())
}

fn beyond() -> Report {
    let id = id();
    run_joins(vec![
        (join_args_short_timeout(&id, 0, 2), &["did not come in time: 1"]),
        (join_args(&id, 2, 2), &["rank 2 of 2: ranks go from 0"]),
    ])
}

/// The same address, and the secret of before.
fn stale_id(id: &UniqueId) -> UniqueId {
    format!("{}/{}", id.address(), "5a".repeat(32)).parse().expect("an id")
}

fn stale() -> Report {
    let id = id();
    run_joins(vec![
        (join_args_short_timeout(&id, 0, 2), &["did not come in time: 1", "rejected connections"]),
        (join_args(&stale_id(&id), 1, 2), &["did not prove the job's secret"]),
    ])
}

fn secret() -> Report {
    let told = stale();
    assert!(told.messages.iter().all(|story| !story.contains("5a5a")), "no secret is printed");
    told
}

/// The first job does not even notice.
fn two_jobs() -> Report {
    let first = id();
    let second = stale_id(&first);
    std::thread::scope(|scope| {
        let root = scope.spawn(|| join(&join_args(&first, 0, 2)).map(|comm| sums(&comm)));
        while TcpStream::connect(first.address()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = run_joins(vec![
            (join_args(&second, 0, 2), &["cannot listen at", "is another job using the port?"]),
            (join_args(&second, 1, 2), &["did not prove the job's secret"]),
        ]);
        join(&join_args(&first, 1, 2)).map(|comm| sums(&comm)).expect("the first job meets");
        root.join().expect("no panic").expect("the first job meets");
        told
    })
}

/// Version of the protocol that this build speaks.
const VERSION: u32 = 10;
const OTHER_VERSION: u32 = 1;

/// Covers both sides: a rank that meets an older root, and a root that an older rank joins.
fn version() -> Report {
    let start = |version: u32| [&b"unisono\0"[..], &version.to_le_bytes()].concat();
    let older = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let at_older: UniqueId =
        format!("{}/{}", older.local_addr().unwrap(), "00".repeat(32)).parse().expect("an id");
    let at_ours = id();
    let told = format!("protocol version {OTHER_VERSION}, this is {VERSION}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = older.accept().expect("a rank");
            stream.write_all(&start(OTHER_VERSION)).expect("sent");
            // Until it has read that.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        scope.spawn(|| {
            let mut rank = loop {
                match TcpStream::connect(at_ours.address()) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            rank.write_all(&start(OTHER_VERSION)).expect("sent");
            let mut answer = [0; 12];
            rank.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[..], start(VERSION), "it is told our version");
        });
        run_joins(vec![
            (join_args(&at_older, 1, 2), &[&told, "run the same build"]),
            (join_args_short_timeout(&at_ours, 0, 2), &["did not come in time: 1", &told]),
        ])
    })
}
