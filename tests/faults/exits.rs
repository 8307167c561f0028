//! Ranks that exit while others still need them: with an error code, without one, by a panic, or by
//! a panic in a spawned operation.

use super::process::{Process, assert_flat, new_id, numbers};
use super::worker::{resources_after_acceptor_exit, say};
use unisono::{Communicator, Config, Sum};
use unisono_transports::testing::NEVER;

const RANKS: usize = 3;
/// The rank that ends, and after so many operations.
const EXITING_RANK: usize = 1;
const OPERATIONS: usize = 10;

/// A rank of one world, of which one ends as the order says.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport, how] = order[..] else { panic!("{order:?}") };
    let transport = transport.parse().expect("a transport");
    let config = Config::default().with_transport(transport).with_timeout(NEVER);
    let rank: usize = rank.parse().expect("a rank");
    let comm = Communicator::join(&id.parse().expect("an id"), rank, RANKS, &config).expect("all come");
    let how = how.to_owned();
    // A thread of its own may panic.
    let thread = std::thread::spawn(move || {
        for number in 0.. {
            if (rank, number) == (EXITING_RANK, OPERATIONS) {
                say("ending");
                exit_as(&how, &comm);
            }
            if let Err(error) = comm.all_reduce(&mut vec![1.0f32; 1000], Sum) {
                return say(format!("failed {error}"));
            }
        }
    });
    let _ = thread.join();
    say(format!("kept {}", resources_after_acceptor_exit()));
}

fn exit_as(how: &str, comm: &Communicator) {
    match how {
        "exit" => std::process::exit(1),
        "leave" => std::process::exit(0),
        "panic" => panic!("as it was told"),
        "operation" => drop(comm.spawn(|_| -> unisono::Result<()> { panic!("as it was told") }).wait()),
        "callback" => comm
            .all_reduce_async(vec![1.0f32; 1000], Sum)
            .and_then(|_| -> unisono::Result<()> { panic!("as it was told") })
            .wait()
            .expect("a rank that does not look at its errors"),
        other => panic!("nobody ends as `{other}`"),
    }
}

#[test]
fn every_exit_is_reported_with_reason() {
    for transport in ["shm", "tcp"] {
        let mut others = [Process::start("ender"), Process::start("ender")];
        let mut first: Option<Vec<Vec<usize>>> = None;
        for (how, why) in [
            ("exit", "rank 1 is gone"),
            ("leave", "rank 1 has left the communicator"),
            ("panic", "rank 1 aborted: its thread panicked"),
            ("operation", "rank 1 aborted: an operation panicked"),
            // The caller's thread panics when it has heard of the panic.
            ("callback", "rank 1 aborted: its thread panicked"),
        ] {
            let (id, mut ender) = (new_id(), Process::start("ender"));
            for (process, rank) in others.iter_mut().zip([0, 2]).chain([(&mut ender, EXITING_RANK)]) {
                process.order(&format!("{id} {rank} {transport} {how}"));
            }
            ender.read_until("ending");
            for other in &others {
                let line = other.read_until("failed");
                assert!(line.contains(why), "{transport}, {how}: {line}");
            }
            let kept = others.each_ref().map(|other| numbers(&other.read_until("kept"))).to_vec();
            let first = first.get_or_insert(kept.clone());
            kept.iter().zip(first).for_each(|(now, earlier)| assert_flat(transport, now, earlier));
        }
    }
}
