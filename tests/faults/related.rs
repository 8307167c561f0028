//! A rank is killed, and another rank that notices this ends a communicator in which a third rank
//! waits.
//!
//! The killed rank is no member of that communicator, but the error of the third rank names it.

use super::process::{Process, new_id};
use super::worker::{next_order, say};
use unisono::{Communicator, Config};
use unisono_transports::testing::NEVER;

const RANKS: usize = 3;
const KILLED_RANK: usize = 1;

/// Runs a rank of one world. Ranks 0 and 2 also have a pair, which rank 0 ends as the order says.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport, end] = order[..] else { panic!("{order:?}") };
    let transport = transport.parse().expect("a transport");
    let config = Config::default().with_transport(transport).with_timeout(NEVER);
    let rank: usize = rank.parse().expect("a rank");
    let world = Communicator::join(&id.parse().expect("an id"), rank, RANKS, &config).expect("all come");
    if rank == KILLED_RANK {
        say("there");
        next_order();
        return;
    }
    let pair = world.create_group(&[0, 2], 0).expect("both members are here");
    say("there");
    if rank == 2 {
        let error = pair.recv(&mut [0u8], 0).expect_err("rank 0 sends nothing");
        return say(format!("failed {error}"));
    }
    next_order().expect("rank 1 is killed");
    let error = world.recv(&mut [0u8], KILLED_RANK).expect_err("rank 1 is dead");
    say(format!("failed {error}"));
    match end {
        "drop" => drop(pair),
        "exit" => std::process::exit(1),
        other => panic!("no end is called {other}"),
    }
    // The world is kept until the other rank has its error.
    next_order();
}

#[test]
fn killed_rank_is_named_in_groups_without_it() {
    for (transport, end) in [("shm", "drop"), ("shm", "exit"), ("tcp", "drop"), ("tcp", "exit")] {
        let id = new_id();
        let mut ranks = [0; RANKS].map(|_| Process::start("relative"));
        for (rank, process) in ranks.iter_mut().enumerate() {
            process.order(&format!("{id} {rank} {transport} {end}"));
        }
        ranks.iter().for_each(|process| assert_eq!(process.read_line(), "there"));
        let [first, killed, last] = &mut ranks;
        killed.kill();
        first.order("rank 1 is dead");
        let noticed = first.read_until("failed");
        assert!(noticed.contains("rank 1 is gone"), "{transport}, {end}: {noticed}");
        let told = last.read_until("failed");
        let cause = "rank 0 has left the communicator after a failure: a related communicator of 3 ranks failed: rank 1 is gone";
        assert!(told.contains(cause), "{transport}, {end}: {told}");
    }
}
