//! Mixed collectives for as long as requested, by `cargo xtask soak`: results stay right, resources
//! stay flat, and throughput does not drop.

use super::kill_random::run_verified;
use super::process::{Process, assert_flat, new_id, numbers};
use super::worker::{resources, say};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_transports::rng::Rng;

const RANKS: usize = 8;
/// Operations of a round, the same ones in every round.
const OPERATIONS: usize = 60;
/// Number of time slices: the first one is for warmup, the second and the last are compared.
const PARTS: usize = 10;

/// A rank that works for so many seconds.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport, seconds] = order[..] else { panic!("{order:?}") };
    let config = Config::default().with_transport(transport.parse().expect("a transport"));
    let rank = rank.parse().expect("a rank");
    let comm = Communicator::join(&id.parse().expect("an id"), rank, RANKS, &config).expect("all come");
    let part = Duration::from_secs(seconds.parse().expect("seconds")) / PARTS as u32;
    for number in 0..PARTS {
        let (begun, mut rounds) = (Instant::now(), 0);
        let mut goes_on = [1u8];
        while goes_on == [1] {
            let mut random = Rng::new(1, 0);
            (0..OPERATIONS).for_each(|_| run_verified(&comm, &mut random).expect("nothing fails"));
            rounds += 1;
            // The first rank has the clock.
            goes_on = [u8::from(begun.elapsed() < part)];
            comm.broadcast(&mut goes_on, 0).expect("nothing fails");
        }
        let milli = (1e3 * f64::from(rounds) / begun.elapsed().as_secs_f64()) as u64;
        say(format!("part {number} {milli} {}", resources()));
    }
}

fn soak(transport: &str, seconds: u64) {
    let id = new_id();
    let mut ranks: Vec<Process> = (0..RANKS).map(|_| Process::start("runner")).collect();
    for (rank, process) in ranks.iter_mut().enumerate() {
        process.order(&format!("{id} {rank} {transport} {seconds}"));
    }
    let mut parts: Vec<Vec<Vec<usize>>> = Vec::new();
    for part in 0..PARTS {
        let said = |process: &Process| {
            let line = process.read_line_within(Duration::from_secs(60 + seconds));
            numbers(line.strip_prefix("part").unwrap_or_else(|| panic!("{line}")))
        };
        let said: Vec<Vec<usize>> = ranks.iter().map(said).collect();
        println!(
            "{transport}, part {part}: {} rounds in 1000 s; kept by rank 0: {:?}",
            said[0][1],
            &said[0][2..]
        );
        parts.push(said);
    }
    for (last, first) in parts[PARTS - 1].iter().zip(&parts[1]) {
        assert_flat(transport, &last[2..], &first[2..]);
    }
    let [first, last] = [&parts[1], &parts[PARTS - 1]].map(|part| part[0][1] as f64);
    println!("{transport}: throughput at the end is {:.3} of that at the beginning", last / first);
    assert!(last > 0.95 * first, "{transport}: it has become slower");
}

#[test]
fn resources_and_throughput_stay_flat() {
    let Ok(seconds) = std::env::var("TEST_SOAK_SECONDS") else { return };
    let seconds: u64 = seconds.parse().expect("seconds");
    ["shm", "tcp"].iter().for_each(|transport| soak(transport, seconds / 2));
}
