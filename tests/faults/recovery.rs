//! Ranks are killed inside operations of 32 MiB, under the loop of the book and the examples.
//!
//! The survivors end with equal weights, each step a mean over the ranks that took part in it, and
//! every error names the rank that died.

#[allow(dead_code, unreachable_pub, reason = "the example has a program around its loop")]
#[path = "../../examples/07_fault_tolerance.rs"]
mod example;

use super::process::{Process, new_id};
use super::times;
use super::worker::{next_order, say};
use example::{Model, train};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;
use unisono::{AbortCause, Communicator, Config, Error, ErrorKind};
use unisono_transports::rng::Rng;

const RANKS: usize = 4;
const STEPS: u64 = 14;
/// The step after which ranks wait until the test has killed some.
const HOLD_AFTER: u64 = 12;
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
    let comm = Communicator::join(&id.parse().expect("an id"), number, RANKS, &config).expect("all come");
    // The sum of such gradients tells which ranks gave one.
    let mut model = Model::new(LENGTH, (1 << number) as f32, after_step);
    say("there");
    match train(comm, &mut model, STEPS) {
        Ok(comm) => {
            let named: Vec<String> =
                model.failures.iter().map(|error| named_rank(error).to_string()).collect();
            say(format!("end {} {} {}", comm.size(), model.weights[0].to_bits(), named.join(",")));
        }
        Err(error) => say(format!("end with {error}, after {:?}", model.failures)),
    }
}

/// Checks the results of a step, and waits for the test once.
fn after_step(model: &Model) {
    static HELD: AtomicBool = AtomicBool::new(false);
    if let Some(what) = wrong_elements(model) {
        say(format!("end with wrong elements: {what}"));
        std::process::exit(1);
    }
    say("step");
    if model.step == HOLD_AFTER && !HELD.swap(true, Ordering::Relaxed) {
        next_order().expect("the test goes on");
    }
}

/// Returns what is wrong, unless every element is the mean over the same ranks, this one among
/// them, and every weight was updated once in each step.
fn wrong_elements(model: &Model) -> Option<String> {
    let (mean, weight) = (model.mean[0], model.weights[0]);
    let odd = model.mean.iter().filter(|element| **element != mean).count();
    let odd_weights = model.weights.iter().filter(|element| **element != weight).count();
    let gradient = model.gradient() as u32;
    let is_mean_of = |ranks: usize| {
        let sum = mean * ranks as f32;
        let members = sum.round() as u32;
        let is_sum = (sum - sum.round()).abs() < 1e-3 && members < 1 << RANKS;
        is_sum && members.count_ones() as usize == ranks && members & gradient != 0
    };
    match (odd, odd_weights) {
        (0, 0) if (1..=RANKS).any(is_mean_of) => None,
        _ => Some(format!("{odd} elements are not {mean}, and {odd_weights} weights not {weight}")),
    }
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
    // Not before the memory of all buffers has been touched, so that the kill meets an operation.
    ranks.iter().flatten().for_each(|process| drop(process.read_until("step")));
    let mut victims = Vec::new();
    for _ in 0..1 + random.below(2) {
        sleep(Duration::from_micros(random.below(60_000) as u64));
        let victim = random.below(RANKS);
        if let Some(mut process) = ranks[victim].take() {
            process.kill();
            victims.push(victim);
        }
    }
    ranks.iter_mut().flatten().for_each(|process| process.order("go on"));
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
