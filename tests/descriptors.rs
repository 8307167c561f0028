//! Descriptors that a communicator has open are as many as the book says.
//!
//! The test is alone in its process, whose descriptors it counts.

mod support;

use std::time::Instant;
use support::World;
use unisono::{Communicator, Config, Sum};
use unisono_transports::testing::HANG;

/// Descriptors of a rank besides those for each peer: its memory, its pipe or listener, and what
/// wakes it.
const FIXED: usize = 6;

/// Descriptors for each peer in use: over TCP, a control connection and those for messages.
fn per_peer(world: World, config: &Config) -> usize {
    match world {
        World::Threads => 0,
        World::Shm => 1,
        World::Tcp | World::Encrypted => 1 + config.sockets_per_peer,
    }
}

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Lets every rank send to every other one.
fn talk(comm: &Communicator) {
    let mut values = vec![1.0f32; 1000 * comm.size()];
    comm.all_reduce(&mut values, Sum).unwrap();
    comm.all_to_all(&values.clone(), &mut values).unwrap();
    comm.barrier().unwrap();
}

#[test]
fn descriptors_of_a_communicator_are_bounded() {
    for world in [World::Threads, World::Shm, World::Tcp, World::Encrypted] {
        for ranks in [1, 2, 3, 5, 9] {
            let (start, config) = (open(), Config::default());
            let comms = world.communicators(ranks, &config);
            std::thread::scope(|scope| {
                comms.iter().for_each(|comm| drop(scope.spawn(|| talk(comm))));
            });
            let held = (open() - start).div_ceil(ranks);
            let most = FIXED + per_peer(world, &config) * (ranks - 1);
            assert!(
                held <= most,
                "{world:?}, {ranks} ranks: each holds {held} descriptors, and {most} is the bound"
            );
            println!("{world:?}, {ranks} ranks: {held} of {most}");
            drop(comms);
            // Threads that accept connections end on their own.
            let begun = Instant::now();
            while open() > start + SPARE {
                assert!(begun.elapsed() < HANG, "{world:?}: {} descriptors are left", open() - start);
                std::thread::yield_now();
            }
        }
    }
}

/// Descriptors that the process makes once.
const SPARE: usize = 4;
