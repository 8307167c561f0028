//! Ranks are killed at any moment, also during a recovery.
//!
//! The others go on, repeatedly, and keep no resources of the killed ranks.

use super::process::{Process, assert_flat, new_id, numbers};
use super::times;
use super::worker::{resources_after_acceptor_exit, say};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Sum};
use unisono_transports::rng::Rng;
use unisono_transports::testing::{HANG, NEVER};

const RANKS: usize = 5;
/// Victims of each cycle; the other ranks survive.
const VICTIMS: usize = 2;
const CYCLES: usize = 10;
const CYCLES_LONG: usize = 200;

/// Runs a rank of one world: sums until the victims are dead, and reports the survivors and the
/// resources of this process.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport] = order[..] else { panic!("{order:?}") };
    let transport = transport.parse().expect("a transport");
    let config = Config::default().with_transport(transport).with_timeout(NEVER);
    let number: usize = rank.parse().expect("a rank");
    let mut comm = Communicator::join(&id.parse().expect("an id"), number, RANKS, &config).expect("all come");
    say("there");
    loop {
        let mut values = vec![1.0f32 + number as f32; 20_000];
        match comm.all_reduce(&mut values, Sum) {
            Err(_) => comm = comm.shrink().expect("some are left"),
            Ok(()) if comm.size() > RANKS - VICTIMS => {}
            Ok(()) => {
                assert!(values.iter().all(|value| *value == values[0]));
                let (rank, ranks, sum) = (comm.rank(), comm.size(), values[0]);
                drop(comm);
                return say(format!("{rank} {ranks} {sum} {}", resources_after_acceptor_exit()));
            }
        }
    }
}

/// Returns the resources of the three survivors of one cycle, and the duration of their recovery.
fn cycle(survivors: &mut [Process], transport: &str, random: &mut Rng) -> (Vec<Vec<usize>>, Duration) {
    let id = new_id();
    let mut victims = [Process::start("survivor"), Process::start("survivor")];
    let mut numbering: Vec<usize> = (0..RANKS).collect();
    (1..RANKS).rev().for_each(|end| numbering.swap(end, random.below(end + 1)));
    let (dying, staying) = numbering.split_at_mut(VICTIMS);
    staying.sort_unstable();
    for (process, number) in victims.iter_mut().zip(dying).chain(survivors.iter_mut().zip(&mut *staying)) {
        process.order(&format!("{id} {number} {transport}"));
    }
    survivors.iter().chain(&victims).for_each(|process| assert_eq!(process.read_line(), "there"));
    sleep(Duration::from_millis(random.below(30) as u64));
    victims[0].kill();
    sleep(Duration::from_micros(random.below(20_000) as u64));
    victims[1].kill();
    let killed = Instant::now();
    let sum: usize = staying.iter().map(|number| number + 1).sum();
    let keep = |(rank, process): (usize, &Process)| {
        let words = numbers(&process.read_line());
        assert_eq!(words[..3], [rank, staying.len(), sum], "{transport}");
        words[3..].to_vec()
    };
    (survivors.iter().enumerate().map(keep).collect(), killed.elapsed())
}

#[test]
fn survivors_continue_without_leaks() {
    let cycles = times(CYCLES, CYCLES_LONG);
    for transport in ["shm", "tcp"] {
        let mut survivors = [0; RANKS - VICTIMS].map(|_| Process::start("survivor"));
        let mut random = Rng::new(cycles as u64, transport.len() as u64);
        let mut elapses = Vec::new();
        let mut first = Vec::new();
        for number in 0..cycles {
            let (kept, elapsed) = cycle(&mut survivors, transport, &mut random);
            assert!(elapsed < HANG, "{transport}, cycle {number}: {elapsed:?}");
            elapses.push(elapsed);
            if number == cycles / 4 {
                first = kept;
            } else if number + 1 == cycles {
                kept.iter().zip(&first).for_each(|(now, earlier)| assert_flat(transport, now, earlier));
            }
        }
        elapses.sort_unstable();
        println!("{transport}: half within {:?}, all within {:?}", elapses[cycles / 2], elapses[cycles - 1]);
    }
}
