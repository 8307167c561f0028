//! Ranks that do not belong together.

use crate::table::{Row, Shown, Told, patient, sums};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Error, Transport, UniqueId};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 23, input: "a world of 0, of 1, of too many", shown: Shown::Here(sizes) },
    Row { number: 24, input: "ranks disagree on the world's size", shown: Shown::Here(disagreeing) },
    Row { number: 25, input: "a rank that is there twice", shown: Shown::Here(duplicate) },
    Row { number: 26, input: "a rank that does not come", shown: Shown::Here(missing) },
    Row { number: 27, input: "a rank beyond the world's size", shown: Shown::Here(beyond) },
    Row { number: 28, input: "the id of a former run", shown: Shown::Here(stale) },
    Row { number: 29, input: "two jobs, one port", shown: Shown::Here(two_jobs) },
    Row { number: 30, input: "another version of the protocol", shown: Shown::Here(version) },
    Row { number: 31, input: "another byte order or word size", shown: Shown::There(BUILD) },
    Row { number: 32, input: "a port scanner", shown: Shown::There(STRANGERS) },
    Row { number: 33, input: "one byte at a time, for ever", shown: Shown::There(STRANGERS) },
    Row { number: 34, input: "a replayed handshake", shown: Shown::There(REPLAY) },
    Row { number: 35, input: "a wrong secret", shown: Shown::Here(secret) },
];

const BUILD: &[(&str, &str)] =
    &[("transports/src/lib.rs", "target_endian = \"little\", target_pointer_width = \"64\"")];
const STRANGERS: &[(&str, &str)] = &[
    ("tests/strangers/main.rs", "fn a_thousand_strangers_do_not_hold_up_a_meeting"),
    ("tests/strangers/main.rs", "fn a_thousand_strangers_at_the_doors_of_a_running_job_harm_nothing"),
];
const REPLAY: &[(&str, &str)] =
    &[("transports/src/auth/tests.rs", "fn a_recorded_handshake_does_not_work_again")];

/// One who wants to join: with which id, as which rank of how many, and how.
pub(crate) type Guest = (UniqueId, usize, usize, Config);

fn id() -> UniqueId {
    UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a free port")
}

fn guest(id: &UniqueId, rank: usize, ranks: usize) -> Guest {
    (id.clone(), rank, ranks, Config { transport: Transport::Shm, ..patient() })
}

/// As [`guest`], with no patience for those who do not come.
fn hasty(id: &UniqueId, rank: usize, ranks: usize) -> Guest {
    let (id, rank, ranks, config) = guest(id, rank, ranks);
    (id, rank, ranks, Config { join_timeout: Duration::from_millis(500), ..config })
}

fn join((id, rank, ranks, config): &Guest) -> Result<Communicator, Error> {
    Communicator::join(id, *rank, *ranks, config)
}

/// Every guest is told a story that contains all of its `parts`.
pub(crate) fn told(guests: Vec<(Guest, &[&str])>) -> Told {
    let begun = Instant::now();
    let stories = std::thread::scope(|scope| {
        let tell = |(guest, parts): (Guest, &'_ [&str])| {
            let story = join(&guest).map(drop).expect_err("nobody gets in").to_string();
            for part in parts {
                assert!(story.contains(part), "`{part}` is not in: {story}");
            }
            story
        };
        let threads: Vec<_> = guests.into_iter().map(|guest| scope.spawn(move || tell(guest))).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let time = begun.elapsed();
    let mut stories: Vec<String> = stories
        .into_iter()
        .map(|story| story.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect();
    stories.dedup();
    Told { stories, time }
}

fn sizes() -> Told {
    let id = id();
    let one = Communicator::join(&id, 0, 1, &patient()).expect("a world of one");
    sums(&one);
    assert!(Communicator::threads_with(0, &patient()).is_err());
    told(vec![
        (guest(&id, 0, 0), &["rank 0 of 0"]),
        (guest(&id, 3, 70_000), &["rank 3 of 70000", "at most 65536"]),
    ])
}

fn disagreeing() -> Told {
    let (id, parts): (_, &[&str]) = (id(), &["rank 1 on", "expects 3", "rank 0 expects 2"]);
    told(vec![(guest(&id, 0, 2), parts), (guest(&id, 1, 3), parts)])
}

fn duplicate() -> Told {
    let (id, parts): (_, &[&str]) = (id(), &["rank 1 is there twice: on "]);
    told([0, 1, 1].map(|rank| (guest(&id, rank, 3), parts)).into())
}

fn missing() -> Told {
    let (id, parts): (_, &[&str]) = (id(), &["1 of 4 ranks did not come in time: 2"]);
    told([0, 1, 3].map(|rank| (hasty(&id, rank, 4), parts)).into())
}

fn beyond() -> Told {
    let id = id();
    told(vec![
        (hasty(&id, 0, 2), &["did not come in time: 1"]),
        (guest(&id, 2, 2), &["rank 2 of 2: ranks go from 0"]),
    ])
}

/// The same address, and the secret of before.
fn of_before(id: &UniqueId) -> UniqueId {
    format!("{}/{}", id.address(), "5a".repeat(32)).parse().expect("an id")
}

fn stale() -> Told {
    let id = id();
    told(vec![
        (hasty(&id, 0, 2), &["did not come in time: 1", "somebody else did"]),
        (guest(&of_before(&id), 1, 2), &["did not prove the job's secret"]),
    ])
}

fn secret() -> Told {
    let told = stale();
    assert!(told.stories.iter().all(|story| !story.contains("5a5a")), "no secret is printed");
    told
}

/// The first job does not even notice.
fn two_jobs() -> Told {
    let first = id();
    let second = of_before(&first);
    std::thread::scope(|scope| {
        let root = scope.spawn(|| join(&guest(&first, 0, 2)).map(|comm| sums(&comm)));
        while TcpStream::connect(first.address()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = told(vec![
            (guest(&second, 0, 2), &["cannot listen at", "is another job using the port?"]),
            (guest(&second, 1, 2), &["did not prove the job's secret"]),
        ]);
        join(&guest(&first, 1, 2)).map(|comm| sums(&comm)).expect("the first job meets");
        root.join().expect("no panic").expect("the first job meets");
        told
    })
}

/// On either side: a rank that finds an older root, and a root that an older rank comes to.
fn version() -> Told {
    let start = |version: u32| [&b"unisono\0"[..], &version.to_le_bytes()].concat();
    let older = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let at_older: UniqueId =
        format!("{}/{}", older.local_addr().unwrap(), "00".repeat(32)).parse().expect("an id");
    let at_ours = id();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = older.accept().expect("a rank");
            stream.write_all(&start(7)).expect("sent");
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
            rank.write_all(&start(7)).expect("sent");
            let mut answer = [0; 12];
            rank.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[..], start(6), "it is told our version");
        });
        told(vec![
            (guest(&at_older, 1, 2), &["speaks protocol version 7, this is 6", "run the same build"]),
            (hasty(&at_ours, 0, 2), &["did not come in time: 1", "protocol version 7, this is 6"]),
        ])
    })
}
