//! Ranks are killed inside operations of 32 MiB, under the loop of the book and the examples.
//!
//! The survivors end with equal weights, each step a mean over the ranks that took part in it, and
//! every error names the rank that died.

#[allow(dead_code, unreachable_pub, reason = "the example has a program around its loop")]
#[path = "../../examples/07_fault_tolerance.rs"]
mod example;

use super::process::{Process, new_id};
use super::times;
use super::worker::say;
use example::{Model, train};
use std::thread::sleep;
use std::time::Duration;
use unisono::{AbortCause, Communicator, Config, Error, ErrorKind};
use unisono_transports::sim::Rng;

const RANKS: usize = 4;
const STEPS: u64 = 6;
/// Elements of an operation: 32 MiB.
const LENGTH: usize = 8 << 20;
const SEEDS: usize = 6;
const SEEDS_LONG: usize = 500;

/// Runs a rank: takes steps, and reports its size at the end, one of its weights, and the ranks
/// that the errors named.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport] = order[..] else { panic!("{order:?}") };
    let config = Config::default()
        .with_transport(transport.parse().expect("a transport"))
        .with_timeout(Duration::from_secs(20));
    let number: usize = rank.parse().expect("a rank");
    let mut comm = Communicator::join(&id.parse().expect("an id"), number, RANKS, &config).expect("all come");
    // The sum of such gradients tells which ranks gave one.
    let mut model = Model::new(LENGTH, (1 << number) as f32);
    say("there");
    for step in 1..=STEPS {
        comm = train(comm, &mut model, step).unwrap_or_else(|error| panic!("rank {number}: {error}"));
        assert_mean_of_members(&model.mean, comm.size(), number);
        assert!(model.weights.iter().all(|weight| *weight == model.weights[0]), "a part was updated twice");
        say("step");
    }
    let named: Vec<String> = model.failures.iter().map(|error| named_rank(error).to_string()).collect();
    say(format!("end {} {} {}", comm.size(), model.weights[0].to_bits(), named.join(",")));
}

/// Asserts that every element is the mean of the same ranks: this one, and at least the `least`
/// ranks that are left.
fn assert_mean_of_members(mean: &[f32], least: usize, number: usize) {
    let odd = mean.iter().filter(|element| **element != mean[0]).count();
    assert_eq!(odd, 0, "elements that are not {}", mean[0]);
    let is_mean_of = |ranks: usize| {
        let sum = mean[0] * ranks as f32;
        let members = sum.round() as u32;
        (sum - sum.round()).abs() < 1e-3
            && members.count_ones() as usize == ranks
            && members & 1 << number != 0
            && members < 1 << RANKS
    };
    assert!((least..=RANKS).any(is_mean_of), "{} is no mean of {least} to {RANKS} ranks", mean[0]);
}

/// Returns the rank that an error names as the one that failed.
fn named_rank(error: &Error) -> usize {
    if let ErrorKind::Aborted { cause, .. } = error.kind() {
        assert!(matches!(cause, AbortCause::Failure(_)), "{error}");
    }
    error.peer().unwrap_or_else(|| panic!("{error} names nobody"))
}

/// Kills one or two of four ranks at random moments, and checks what the others report.
fn recover(transport: &str, random: &mut Rng) {
    let id = new_id();
    let mut ranks: Vec<Option<Process>> = (0..RANKS).map(|_| Some(Process::start("stepper"))).collect();
    for (number, process) in ranks.iter_mut().enumerate() {
        process.as_mut().expect("it runs").order(&format!("{id} {number} {transport}"));
    }
    ranks.iter().flatten().for_each(|process| assert_eq!(process.read_line(), "there"));
    // Not before the memory of all buffers has been touched, so that the kill meets an operation.
    ranks.iter().flatten().for_each(|process| assert_eq!(process.read_line(), "step"));
    let mut victims = Vec::new();
    for _ in 0..1 + random.below(2) {
        sleep(Duration::from_micros(random.below(60_000) as u64));
        let victim = random.below(RANKS);
        if let Some(mut process) = ranks[victim].take() {
            process.kill();
            victims.push(victim);
        }
    }
    let ends: Vec<String> = ranks.iter().flatten().map(|process| process.read_until("end")).collect();
    for end in &ends {
        let words: Vec<&str> = end.split(' ').collect();
        assert_eq!(words[0], (RANKS - victims.len()).to_string(), "{transport}: {ends:?}");
        assert_eq!(words[1], ends[0].split(' ').nth(1).expect("a weight"), "{transport}: {ends:?}");
        let first: usize = words[2].split(',').next().expect("a rank").parse().expect("an error was seen");
        assert!(victims.contains(&first), "{transport}: killed {victims:?}, told {ends:?}");
    }
}

#[test]
fn kills_inside_32_mib_leave_no_wrong_element() {
    for seed in 0..times(SEEDS, SEEDS_LONG) {
        for transport in ["shm", "tcp"] {
            recover(transport, &mut Rng::new(seed as u64, transport.len() as u64));
        }
    }
}
