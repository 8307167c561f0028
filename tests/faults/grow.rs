//! A rank is killed, the others shrink, and a new process joins, repeatedly and without growth of
//! resources.

use super::process::{Process, assert_flat, new_id, numbers};
use super::times;
use super::worker::{micros, next_order, resources, say};
use std::thread::sleep;
use std::time::Duration;
use unisono::{Communicator, Config, Sum};
use unisono_transports::rng::Rng;
use unisono_transports::testing::{HANG, NEVER};

const RANKS: usize = 3;

/// A member of a community that shrinks and grows, until it is killed or there are no more orders.
pub(crate) fn run_worker(words: &[&str]) {
    let [id, rank, transport] = words[..] else { panic!("{words:?}") };
    let transport = transport.parse().expect("a transport");
    let config = Config::default().with_transport(transport).with_timeout(NEVER);
    let rank = rank.parse().expect("a rank");
    let mut comm = Communicator::join(&id.parse().expect("an id"), rank, RANKS, &config).expect("all come");
    loop {
        sum(&comm).expect("all are here");
        say(format!("whole {}", resources()));
        while sum(&comm).is_ok() {}
        comm = comm.shrink().expect("two are left");
        sum(&comm).expect("those that are left are sound");
        say(format!("shrunk {} {}", micros(), comm.size()));
        let Some(id) = next_order() else { return };
        comm = comm.grow(&id.parse().expect("an id"), 1).expect("one comes");
    }
}

/// Sums a one of every rank.
fn sum(comm: &Communicator) -> unisono::Result<()> {
    let mut values = vec![1.0f32; 20_000];
    comm.all_reduce(&mut values, Sum)?;
    assert!(values.iter().all(|value| *value == comm.size() as f32));
    Ok(())
}

/// Returns the resources of the first member once all ranks have joined.
fn whole(members: &[Process]) -> Vec<usize> {
    members.iter().map(|member| numbers(&member.read_until("whole"))).next().expect("there are members")
}

/// Kills a rank other than the first and lets a new one join. Returns the durations of both
/// recoveries in microseconds.
fn replace_one(members: &mut Vec<Process>, transport: &str, random: &mut Rng) -> u64 {
    sleep(Duration::from_micros(random.below(5000) as u64));
    let killed = micros();
    members.remove(1 + random.below(RANKS - 1)).kill();
    let gone_on = |member: &Process| {
        let shrunk = numbers(&member.read_until("shrunk"));
        assert_eq!(shrunk[1], RANKS - 1, "{transport}");
        (shrunk[0] as u64).saturating_sub(killed)
    };
    let took = members.iter().map(gone_on).max().expect("there are members");
    let (id, mut newcomer) = (new_id(), Process::start("member"));
    members.iter_mut().for_each(|member| member.order(&id.to_string()));
    newcomer.order(&format!("{id} {} {transport}", RANKS - 1));
    members.push(newcomer);
    took
}

#[test]
fn killed_ranks_are_replaced_repeatedly() {
    let cycles = times(6, 200);
    for transport in ["shm", "tcp"] {
        let mut members: Vec<Process> = (0..RANKS).map(|_| Process::start("member")).collect();
        let (id, mut random) = (new_id(), Rng::new(cycles as u64, 0));
        for (rank, member) in members.iter_mut().enumerate() {
            member.order(&format!("{id} {rank} {transport}"));
        }
        let (mut took, mut early, mut late) = (Vec::new(), whole(&members), vec![usize::MAX; 3]);
        for number in 0..cycles {
            took.push(replace_one(&mut members, transport, &mut random));
            let now = whole(&members);
            // Threads of the world before may still be ending, so the least counts later. A number
            // that grows with each world is above the most of the first ones in all of them.
            let (kept, select): (_, fn(usize, usize) -> usize) = match number <= cycles / 4 {
                true => (&mut early, Ord::max),
                false => (&mut late, Ord::min),
            };
            kept.iter_mut().zip(now).for_each(|(kept, now)| *kept = select(*kept, now));
        }
        assert_flat(transport, &late, &early);
        took.sort_unstable();
        let (half, longest) = (took[cycles / 2], took[cycles - 1]);
        println!("{transport}: {cycles} times, half go on within {half} µs, all within {longest} µs");
        assert!((longest as u128) < HANG.as_micros(), "{transport}: {longest} µs");
    }
}
