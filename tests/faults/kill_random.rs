//! A rank is killed at a random moment: during bootstrap, in the middle of collectives, or while
//! ranks leave.
//!
//! The others get an error soon, or have completed. Earlier results are right.

use super::process::{Process, assert_flat, new_id, numbers};
use super::support::{Case, call, input_and_expected};
use super::times;
use super::worker::{micros, resources_after_acceptor_exit, say};
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;
use unisono::schedule::Collective;
use unisono::{Communicator, Config, Error, ReduceKind};
use unisono_transports::rng::Rng;
use unisono_transports::testing::{HANG, NEVER};

const RANKS: usize = 4;
const OPERATIONS: usize = 40;
/// Phase in which a rank is killed, and the approximate duration of the phase in microseconds.
const PHASES: [(&str, usize); 3] = [("joining", 10_000), ("working", 40_000), ("leaving", 1_500)];
/// A rank that is killed before anybody knows of it is missed when ranks should have met.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A rank of one world: it meets the others, works, leaves, and says when and how that failed.
pub(crate) fn run_worker(order: &[&str]) {
    say("joining");
    match work(order) {
        Ok(()) => say("left"),
        Err(what) => say(format!("failed {what}")),
    }
    say(format!("kept {}", resources_after_acceptor_exit()));
}

fn work(order: &[&str]) -> Result<(), String> {
    let [id, rank, transport, seed] = order[..] else { panic!("{order:?}") };
    let transport = transport.parse().expect("a transport");
    let config =
        Config::default().with_transport(transport).with_join_timeout(JOIN_TIMEOUT).with_timeout(NEVER);
    let (id, rank) = (id.parse().expect("an id"), rank.parse().expect("a rank"));
    let mut random = Rng::new(seed.parse().expect("a seed"), 0);
    // Before anything is dropped.
    let failed = |error: Error| format!("{} {error}", micros());
    let comm = Communicator::join(&id, rank, RANKS, &config).map_err(failed)?;
    say("working");
    for _ in 0..OPERATIONS {
        run_verified(&comm, &mut random).map_err(failed)?;
    }
    say("leaving");
    Ok(())
}

/// Runs a random collective, equal on all ranks with the same numbers, and checks its result.
pub(crate) fn run_verified(comm: &Communicator, random: &mut Rng) -> unisono::Result<()> {
    let ranks = comm.size();
    let case = Case {
        collective: Collective::ALL[random.below(Collective::ALL.len())],
        op: ReduceKind::Sum,
        root: random.below(ranks),
        count: [1, 60, 2000, 30_000][random.below(4)],
        in_place: false,
    };
    let (input, expected) = input_and_expected::<f32>(case, ranks, comm.rank());
    let mut output = vec![0.0; expected.len()];
    call(comm, case, &input, &mut output)?;
    if !output.iter().zip(&expected).all(|(found, expected)| f64::from(*found) == *expected) {
        say(format!("wrong result of {case:?}"));
    }
    Ok(())
}

/// Number of ranks that noticed the death, with the times, and number of ranks that had completed
/// before.
#[derive(Default)]
struct Detection {
    noticed: Vec<Duration>,
    absent: usize,
    finished: usize,
    /// Last report of a rank.
    last: (Duration, String),
}

impl Detection {
    /// Observation of the end of `victim` by a survivor.
    fn add(&mut self, survivor: &Process, victim: usize, killed: u64) {
        loop {
            let line = survivor.read_line();
            let (word, details) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "left" => break self.finished += 1,
                "failed" => {
                    let (when, what) = details.split_once(' ').expect("when and what");
                    assert!(
                        what.contains(&format!("rank {victim}")) || is_missing_rank(what, victim),
                        "{what}"
                    );
                    let elapsed = when.parse::<u64>().expect("a time").saturating_sub(killed);
                    if is_missing_rank(what, victim) {
                        break self.absent += 1;
                    }
                    let elapsed = Duration::from_micros(elapsed);
                    self.noticed.push(elapsed);
                    break self.last = self.last.clone().max((elapsed, what.to_owned()));
                }
                "wrong" => panic!("{line}"),
                _ => {}
            }
        }
    }

    fn merge(&mut self, other: &Detection) {
        self.noticed.extend(&other.noticed);
        self.noticed.sort_unstable();
        (self.absent, self.finished) = (self.absent + other.absent, self.finished + other.finished);
        self.last = self.last.clone().max(other.last.clone());
    }

    /// Returns the time within which `percent` of the ranks noticed.
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.noticed.len().saturating_sub(1);
        self.noticed.get(last * percent / 100).copied().unwrap_or_default()
    }
}

/// Returns whether the error reports the end of a rank that never joined.
fn is_missing_rank(what: &str, victim: usize) -> bool {
    what.contains(&format!("did not come in time: {victim}"))
        || victim == 0 && what.contains("rank 0 could not be reached")
}

/// Runs one world in which one rank is killed, and returns the resources of the others.
fn kill_one(
    survivors: &mut [Process],
    mut victim: Process,
    (transport, phase): (&str, usize),
    random: &mut Rng,
) -> (Detection, Vec<Vec<usize>>) {
    let (id, rank, seed) = (new_id(), random.below(RANKS), random.below(1 << 30));
    let others = (0..RANKS).filter(|&other| other != rank);
    for (process, rank) in survivors.iter_mut().zip(others).chain([(&mut victim, rank)]) {
        process.order(&format!("{id} {rank} {transport} {seed}"));
    }
    victim.read_until(PHASES[phase].0);
    sleep(Duration::from_micros(random.below(PHASES[phase].1) as u64));
    let killed = micros();
    victim.kill();
    let mut toll = Detection::default();
    survivors.iter().for_each(|survivor| toll.add(survivor, rank, killed));
    (toll, survivors.iter().map(|survivor| numbers(&survivor.read_until("kept"))).collect())
}

fn kill_many(transport: &str, runs: usize) {
    let mut survivors: Vec<Process> = (1..RANKS).map(|_| Process::start("mortal")).collect();
    let mut random = Rng::new(runs as u64, transport.len() as u64);
    let mut spare = Process::start("mortal");
    let (mut tolls, mut first) = (BTreeMap::<usize, Detection>::new(), Vec::new());
    for number in 0..runs {
        // The next world starts in parallel.
        let victim = std::mem::replace(&mut spare, Process::start("mortal"));
        let phase = number % PHASES.len();
        let (toll, kept) = kill_one(&mut survivors, victim, (transport, phase), &mut random);
        tolls.entry(phase).or_default().merge(&toll);
        if number == runs / 4 {
            first = kept;
        } else if number + 1 == runs {
            kept.iter().zip(&first).for_each(|(now, earlier)| assert_flat(transport, now, earlier));
        }
    }
    let mut total = Detection::default();
    println!(
        "| {transport}: killed while | ranks told | half within | 99 % within | all within | not there yet | through before |"
    );
    for (phase, toll) in &tolls {
        show(PHASES[*phase].0, toll);
        total.merge(toll);
    }
    show("all", &total);
    println!("the last: {}", total.last.1);
    // The end of the victim ended the waits, and no timeout.
    assert!(total.percentile(100) < HANG, "{transport}: {:?}", total.last);
}

fn show(phase: &str, toll: &Detection) {
    let [half, most, longest] = [50, 99, 100].map(|percent| toll.percentile(percent));
    let told = toll.noticed.len();
    println!(
        "| {phase} | {told} | {half:.1?} | {most:.1?} | {longest:.1?} | {} | {} |",
        toll.absent, toll.finished
    );
}

#[test]
fn kill_over_shm_is_named_soon() {
    kill_many("shm", times(24, 1000));
}

#[test]
fn kill_over_tcp_is_named_soon() {
    kill_many("tcp", times(12, 200));
}
