//! A stopped rank is detected by its missing progress.
//!
//! The others fail at the configured timeout and go on without the stopped rank. When it runs
//! again, it gets an error and disturbs nobody.

use super::process::{Process, new_id};
use super::worker::{micros, say};
use std::thread::sleep;
use std::time::Duration;
use unisono::{Communicator, Config, Sum};
use unisono_transports::testing::HANG;

const RANKS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 200;

/// A rank that sums until that fails, and then with those that are left.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport] = order[..] else { panic!("{order:?}") };
    let transport = transport.parse().expect("a transport");
    let config = Config::default().with_transport(transport).with_timeout(TIMEOUT);
    let rank: usize = rank.parse().expect("a rank");
    let comm = Communicator::join(&id.parse().expect("an id"), rank, RANKS, &config).expect("all come");
    say("there");
    let sum = |comm: &Communicator| {
        let mut values = vec![1.0f32 + rank as f32; 20_000];
        comm.all_reduce(&mut values, Sum).map(|()| values[0])
    };
    let error = loop {
        if let Err(error) = sum(&comm) {
            break error;
        }
    };
    say(format!("failed {} {error}", micros()));
    match comm.shrink() {
        Ok(left) => {
            say("shrunk");
            for _ in 0..ROUNDS {
                assert_eq!(sum(&left).expect("those that are left are sound"), 4.0);
                sleep(Duration::from_millis(5));
            }
            say(format!("through {} {}", left.rank(), left.size()));
        }
        Err(error) => say(format!("refused {error}")),
    }
}

/// Returns the report of a process about its failure, and the seconds from `start` to the failure.
fn failure(process: &Process, start: u64) -> (f64, String) {
    let line = process.read_until("failed");
    let (when, what) = line.split_once(' ').expect("when and what");
    let when: u64 = when.parse().expect("a time");
    (when.saturating_sub(start) as f64 / 1e6, what.to_owned())
}

fn stop_one(transport: &str) {
    let id = new_id();
    let mut ranks = [0; RANKS].map(|_| Process::start("patient"));
    for (rank, process) in ranks.iter_mut().enumerate() {
        process.order(&format!("{id} {rank} {transport}"));
    }
    ranks.iter().for_each(|process| assert_eq!(process.read_line(), "there"));
    sleep(Duration::from_millis(100));
    let stopped = micros();
    ranks[1].signal("-STOP");
    for rank in [0, 2] {
        let (elapsed, what) = failure(&ranks[rank], stopped);
        let set = TIMEOUT.as_secs_f64();
        assert!(
            (0.9 * set..HANG.as_secs_f64()).contains(&elapsed),
            "{transport}: rank {rank} after {elapsed} s: {what}"
        );
        assert!(what.contains("waiting for rank 1"), "{transport}: {what}");
    }
    [0, 2].iter().for_each(|&rank| assert_eq!(ranks[rank].read_line(), "shrunk", "{transport}"));
    ranks[1].signal("-CONT");
    let (_, what) = failure(&ranks[1], micros());
    assert!(
        what.contains("have gone on without this one") || what.contains("aborted"),
        "{transport}: {what}"
    );
    assert!(ranks[1].read_until("refused").contains("have gone on without this one"), "{transport}");
    assert_eq!([0, 2].map(|rank| ranks[rank].read_line()), ["through 0 2", "through 1 2"], "{transport}");
}

#[test]
fn stopped_rank_over_shm_is_excluded_in_time() {
    stop_one("shm");
}

#[test]
fn stopped_rank_over_tcp_is_excluded_in_time() {
    stop_one("tcp");
}
