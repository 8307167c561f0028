//! Ranks that end regularly right after their last operation, while others still receive.
//!
//! A process that ends with the code 0 has left, whether it dropped its communicators or not.
//! Nothing that it sent may be lost, and nobody may take it for dead.

use super::process::{Process, new_id};
use super::times;
use super::worker::say;
use std::time::Duration;
use unisono::{Communicator, Config, Result, Sum};

/// The wires: their name, transport and encryption.
const WIRES: [&str; 3] = ["shm", "tcp", "encrypted"];

/// A rank that plays one story, and whose process then ends at once.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, ranks, wire, story, end] = order[..] else { panic!("{order:?}") };
    let transport = if wire == "shm" { "shm" } else { "tcp" };
    let config = Config::default()
        .with_transport(transport.parse().expect("a transport"))
        .with_encryption(wire == "encrypted")
        .with_timeout(Duration::from_secs(20));
    let (rank, ranks) = (rank.parse().expect("a rank"), ranks.parse().expect("a number"));
    let joined = Communicator::join(&id.parse().expect("an id"), rank, ranks, &config);
    let (comm, played) = match joined {
        Ok(comm) => (Some(comm.clone()), play(story, &comm)),
        Err(error) => (None, Err(error)),
    };
    match played {
        Ok(()) => say("ended well"),
        Err(error) => say(format!("ended badly: {error}")),
    }
    if end == "drop" {
        drop(comm);
    }
    // Between this and the end of `main`, the harness of the test would do other things.
    std::process::exit(0);
}

fn play(story: &str, comm: &Communicator) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    match story {
        // Each message is longer than what goes at once.
        "ring" => {
            let (sent, received) =
                (comm.isend(vec![rank as u8; 1 << 20], next, 0), comm.irecv(vec![0u8; 1 << 20], previous, 0));
            let received = received.wait()?.0;
            sent.wait()?;
            assert_eq!((received[0], received[(1 << 20) - 1]), (previous as u8, previous as u8));
        }
        // Two ranks go on when the others have ended.
        "pairs" => {
            let rounds: u64 = if rank < 2 { 1 } else { 50 };
            for round in 0..rounds {
                let sent = comm.isend(vec![round], rank ^ 1, 0);
                assert_eq!(comm.irecv(vec![0u64], rank ^ 1, 0).wait()?.0, [round]);
                sent.wait()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        "operations" => {
            for _ in 0..3 {
                assert_eq!(comm.all_reduce_async(vec![1.0f32; 100], Sum).wait()?[99], ranks as f32);
            }
        }
        // The receiver comes late, and the sender's process is gone by then.
        "late" if rank == 0 => {
            for tag in 0..8 {
                comm.isend(vec![7u64; 15_000], 1, tag).wait()?;
            }
            comm.send(&vec![8u64; 200_000], 1)?;
        }
        "late" if rank == 1 => {
            std::thread::sleep(Duration::from_millis(800));
            for tag in 0..8 {
                assert_eq!(comm.irecv(vec![0u64; 15_000], 0, tag).wait()?.0, vec![7; 15_000]);
            }
            let mut received = vec![0u64; 200_000];
            comm.recv(&mut received, 0)?;
            assert_eq!(received, vec![8; 200_000]);
        }
        "late" => {}
        // The other rank leaves without receiving it.
        "lost" if rank == 0 => drop(comm.isend(vec![0u8; 1 << 20], 1, 5)),
        "lost" => {}
        "join" => {}
        other => panic!("no story is called {other}"),
    }
    Ok(())
}

/// Plays a story in processes of their own. Returns what went wrong.
fn run(ranks: usize, wire: &str, story: &str, end: &str) -> Vec<String> {
    let id = new_id();
    let mut processes: Vec<Process> = (0..ranks).map(|_| Process::start("leaver")).collect();
    for (rank, process) in processes.iter_mut().enumerate() {
        process.order(&format!("{id} {rank} {ranks} {wire} {story} {end}"));
    }
    let mut bad = Vec::new();
    for (rank, process) in processes.iter_mut().enumerate() {
        let (line, code) = (process.read_until("ended"), process.wait_for_exit());
        if line != "well" || code != Some(0) {
            bad.push(format!("{story} over {wire}, {end}, rank {rank}, exit code {code:?}: {line}"));
        }
    }
    bad
}

/// Nobody waits for the message, so the library says that it did not arrive.
#[test]
fn lost_send_that_nobody_waits_for_is_told() {
    for wire in WIRES {
        let (id, told) = (new_id(), std::env::temp_dir().join(format!("lost-send-{}", std::process::id())));
        let command = format!("exec \"$0\" \"$@\" 2> '{}'", told.display());
        let mut sender = Process::start_by(&["sh", "-c", &command], "leaver");
        let mut receiver = Process::start("leaver");
        for (rank, process) in [&mut sender, &mut receiver].into_iter().enumerate() {
            process.order(&format!("{id} {rank} 2 {wire} lost exit"));
        }
        assert_eq!((receiver.wait_for_exit(), sender.wait_for_exit()), (Some(0), Some(0)));
        let text = std::fs::read_to_string(&told).expect("what it said");
        std::fs::remove_file(&told).expect("it is there");
        assert!(text.contains("rank 0 of 2"), "over {wire}: `{text}`");
        assert!(text.contains("isend to rank 1 with tag 5 (1048576 bytes) is lost"), "{text}");
    }
}

/// Plays a story many times over every wire, with communicators that are dropped and that are not.
fn play_often(story: &str, ranks: usize) {
    let runs = times(4, 200);
    let mut failures = Vec::new();
    for wire in WIRES {
        for end in ["drop", "exit"] {
            let bad: Vec<_> = (0..runs).map(|_| run(ranks, wire, story, end)).collect();
            let count = bad.iter().filter(|bad| !bad.is_empty()).count();
            println!("{story} of {ranks} ranks over {wire}, {end}: {count} of {runs} runs failed");
            failures.extend(bad.into_iter().flatten());
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn ring_of_long_messages_may_end_at_once() {
    play_often("ring", 8);
}

#[test]
fn pairs_may_end_while_others_go_on() {
    play_often("pairs", 4);
}

#[test]
fn process_may_end_after_awaited_operations() {
    play_often("operations", 3);
}

#[test]
fn message_of_ended_process_is_received_late() {
    play_often("late", 3);
}

#[test]
fn process_may_end_as_soon_as_it_has_joined() {
    play_often("join", 4);
}
