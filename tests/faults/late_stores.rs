//! Symmetric memory of a rank whose call has failed belongs to that rank again.
//!
//! Peers are in the middle of a copy into it when the call fails: by a timeout, an abort, or the
//! death of a third rank. A peer that is a thread goes on copying, and one that is a process is
//! stopped and resumed later. In all cases, no byte of the memory changes after the call returned.
//! A forked child has none of the memory.

use super::process::{Process, new_id};
use super::times;
use super::worker::{next_order, say};
use std::panic::catch_unwind;
use std::sync::Barrier;
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{CallOptions, Communicator, Config, Sum, SymmetricBuffer};
use unisono_transports::rng::Rng;
use unisono_transports::testing::conformance::run_in_forked_child;
use unisono_transports::testing::{HANG, NEVER, SelfSignal, signal_self};

const RANKS: usize = 3;
/// The rank whose call fails first, that which stops in its copy, and that which may die.
const OWNER: usize = 0;
const STOPPED: usize = 1;
const THIRD: usize = 2;
/// Elements of a share.
const COUNT: usize = 2 << 20;
/// Time without progress after which the owner's call fails, in the stories about it.
const TIMEOUT: Duration = Duration::from_millis(40);

/// Symmetric memory of one rank, and what its call left there.
struct Exposed {
    rank: usize,
    /// The input of an all_gather; an all_reduce is in place.
    input: Option<SymmetricBuffer<u32>>,
    output: SymmetricBuffer<u32>,
    /// The content when the call returned its error.
    after_error: Vec<u32>,
}

impl Exposed {
    fn new(comm: &Communicator, gathers: bool) -> Self {
        let share = COUNT / comm.size();
        let mut output = comm.alloc_symmetric(share * comm.size()).expect("memory");
        let input = gathers.then(|| comm.alloc_symmetric(share).expect("memory"));
        output.fill(1 + comm.rank() as u32);
        // A rank that is quicker may have ended already what others are about to begin.
        let _ = comm.barrier();
        Self { rank: comm.rank(), input, output, after_error: Vec::new() }
    }

    /// Runs operations until one fails. Each one changes all elements.
    fn run_until_error(&mut self, comm: &Communicator) {
        let mut turn = 0;
        let mut operate = || match &mut self.input {
            Some(input) => {
                turn += comm.size();
                input.fill((turn + self.rank) as u32);
                comm.all_gather(input, &mut self.output)
            }
            // Sums wrap around.
            None => comm.all_reduce(&mut self.output, Sum),
        };
        while operate().is_ok() {}
        self.after_error = self.output.to_vec();
    }

    /// Returns how many elements have changed since the call returned.
    fn changed(&self) -> usize {
        self.output.iter().zip(&self.after_error).filter(|(now, then)| now != then).count()
    }
}

fn micros(word: &str) -> Duration {
    Duration::from_micros(word.parse().expect("microseconds"))
}

/// Returns whether this process has a private copy of memory that was shared.
fn has_private_copy() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().any(|line| line.contains("unisono") && line.contains("rw-p"))
}

/// A rank that is a process: it says how its call ended, and later how much has changed since.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, how, operation, fails_after, stops_after] = order[..] else { panic!("{order:?}") };
    let rank: usize = rank.parse().expect("a rank");
    let config = Config::default().with_transport("shm".parse().expect("a transport")).with_timeout(NEVER);
    let comm = Communicator::join(&id.parse().expect("an id"), rank, RANKS, &config).expect("all come");
    let mut memory = Exposed::new(&comm, operation == "all_gather");
    let limit = if (rank, how) == (OWNER, "timeout") { TIMEOUT } else { NEVER };
    let options = CallOptions::new().timeout(limit);
    std::thread::scope(|scope| {
        scope.spawn(|| match (rank, how) {
            (STOPPED, _) => {
                sleep(micros(stops_after));
                signal_self(SelfSignal::Stop);
            }
            (OWNER, "abort") => {
                sleep(micros(fails_after));
                comm.abort("as it was told");
            }
            (THIRD, "death") => {
                sleep(micros(fails_after));
                signal_self(SelfSignal::Kill);
            }
            _ => {}
        });
        let run = |comm: &Communicator| {
            memory.run_until_error(comm);
            Ok(())
        };
        comm.with_options(&options, run).expect("valid options");
    });
    say("failed");
    assert_eq!(next_order().as_deref(), Some("look"));
    say(format!("{} {}", memory.changed(), has_private_copy()));
}

/// Observations of the ranks of one run.
#[derive(Default)]
struct Seen {
    /// Elements that changed after an error was returned.
    changed: usize,
    /// A rank failed while a peer was in a copy, and so has a private copy of its memory.
    in_copy: bool,
}

/// Resumes a process until it has said how its call ended: it may stop later than it is resumed.
fn resume(process: &Process) {
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        process.signal("-CONT");
        if process.try_read_line(Duration::from_millis(5)).is_some() {
            return;
        }
    }
    panic!("it does not end in time")
}

/// Runs one operation that fails, among processes of which one is stopped meanwhile.
fn run(processes: &mut [Process; RANKS], how: &str, random: &mut Rng) -> Seen {
    let id = new_id();
    let operation = random.choose(&["all_reduce", "all_gather"]);
    let stops_after = random.below(8_000);
    let fails_after = stops_after + random.below(2_000);
    for (rank, process) in processes.iter_mut().enumerate() {
        process.order(&format!("{id} {rank} {how} {operation} {fails_after} {stops_after}"));
    }
    processes[OWNER].read_until("failed");
    if how == "death" {
        assert_eq!(processes[THIRD].wait_for_exit(), None, "a signal ends it");
        processes[THIRD] = Process::start("exposed");
    } else {
        processes[THIRD].read_until("failed");
    }
    resume(&processes[STOPPED]);
    let mut seen = Seen::default();
    for (rank, process) in processes.iter_mut().enumerate() {
        if (rank, how) != (THIRD, "death") {
            process.order("look");
            let line = process.read_line();
            let (changed, private) = line.split_once(' ').expect("two words");
            seen.changed += changed.parse::<usize>().expect("a number");
            seen.in_copy |= private == "true";
        }
    }
    seen
}

#[test]
fn stopped_process_changes_no_memory_after_an_error() {
    let runs = times(40, 340);
    let mut in_copy_at_all = 0;
    for how in ["timeout", "abort", "death"] {
        let mut processes = [0; RANKS].map(|_| Process::start("exposed"));
        let (mut in_copy, mut changed) = (0, Vec::new());
        for seed in 0..runs {
            let seen = run(&mut processes, how, &mut Rng::new(seed as u64, how.len() as u64));
            in_copy += usize::from(seen.in_copy);
            changed.extend((seen.changed > 0).then_some((seed, seen.changed)));
        }
        println!("{how}: {runs} runs, {in_copy} of them with a peer that was stopped or killed in its copy");
        assert!(changed.is_empty(), "{how}: elements changed after the error, by seed: {changed:?}");
        in_copy_at_all += in_copy;
    }
    assert!(in_copy_at_all > 0, "no peer was stopped in its copy");
}

/// Ranks outnumber cores, so some are done while others have yet to begin.
const THREADS: usize = 5;

#[test]
fn peer_thread_changes_no_memory_after_an_error() {
    let runs = times(100, 1000);
    for how in ["timeout", "abort"] {
        let mut changed = Vec::new();
        for seed in 0..runs {
            let count = run_threads(how, &mut Rng::new(seed as u64, how.len() as u64));
            changed.extend((count > 0).then_some((seed, count)));
        }
        println!("{how}: {runs} runs of {THREADS} threads");
        assert!(changed.is_empty(), "{how}: elements changed after the error, by seed: {changed:?}");
    }
}

/// Returns how many elements changed after the calls of all ranks had failed.
fn run_threads(how: &str, random: &mut Rng) -> usize {
    let (gathers, fails_after) = (random.one_in(2), Duration::from_micros(random.below(8_000) as u64));
    let limit = |rank| match (rank, how) {
        (OWNER, "timeout") => Duration::from_micros(200),
        _ => NEVER,
    };
    let config = Config::default().with_timeout(NEVER);
    let comms = Communicator::builder().config(&config).local(THREADS).expect("threads");
    let (owner, ready, ended) = (comms[OWNER].clone(), Barrier::new(THREADS + 1), Barrier::new(THREADS));
    let rank = |comm: Communicator| {
        let mut memory = Exposed::new(&comm, gathers);
        ready.wait();
        let options = CallOptions::new().timeout(limit(comm.rank()));
        let run = |comm: &Communicator| {
            memory.run_until_error(comm);
            Ok(())
        };
        comm.with_options(&options, run).expect("valid options");
        ended.wait();
        memory.changed()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        ready.wait();
        sleep(fails_after);
        owner.abort("as it was told");
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).sum()
    })
}

/// A rank whose forked child reads the parent's symmetric memory. The process has no other threads
/// that could hold a lock when it forks.
pub(crate) fn run_parent(order: &[&str]) {
    let [id] = order[..] else { panic!("{order:?}") };
    let config = Config::default().with_transport("shm".parse().expect("a transport"));
    let comm = Communicator::join(&id.parse().expect("an id"), 0, 1, &config).expect("nobody else comes");
    let mut memory = comm.alloc_symmetric::<u32>(1000).expect("memory");
    memory.fill(7);
    let read =
        || catch_unwind(|| memory[999].to_string()).unwrap_or_else(|panic| *panic.downcast().expect("text"));
    say(read());
    say(run_in_forked_child(read).expect("the child ends"));
    comm.all_reduce(&mut memory, Sum).expect("the parent has its own");
    say(memory[999]);
}

#[test]
fn forked_child_is_refused_symmetric_memory() {
    let mut parent = Process::start("forking");
    parent.order(&new_id().to_string());
    assert_eq!(parent.read_line(), "7");
    let text =
        format!("memory that process {} shares with its peers is not in its forked child", parent.id());
    let told = parent.read_line();
    assert!(told.contains(&text), "{told}");
    assert_eq!(parent.read_line(), "7");
}
