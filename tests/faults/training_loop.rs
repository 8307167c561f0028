//! A rank of the training loop of the book and the examples is killed: the others load the newest
//! checkpoint, and end with the weights that all ranks together find.

#[allow(dead_code, unreachable_pub, reason = "the example has a program around its loop")]
#[path = "../../examples/08_training_loop.rs"]
mod example;

use super::process::{Process, new_id};
use super::times;
use super::worker::{next_order, say};
use example::{Job, train};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use unisono::{Communicator, Config};

const RANKS: usize = 3;
const STEPS: u64 = 12;
const STEPS_PER_CHECKPOINT: u64 = 4;
/// A step between two checkpoints, after which ranks wait until the test has killed one.
const HOLD_AFTER: u64 = 6;

/// Runs a rank: trains, and reports the weights, the ranks and the number of steps at the end.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport, folder] = order[..] else { panic!("{order:?}") };
    let config = Config::default()
        .with_transport(transport.parse().expect("a transport"))
        .with_timeout(Duration::from_secs(20));
    let id = id.parse().expect("an id");
    let comm = Communicator::join(&id, rank.parse().expect("a rank"), RANKS, &config).expect("all come");
    let job = Job { steps: STEPS, steps_per_checkpoint: STEPS_PER_CHECKPOINT, folder: folder.into() };
    let held = AtomicBool::new(false);
    let trained = train(comm, job, &|comm, step| {
        say(format!("step {step} {}", comm.size()));
        if step == HOLD_AFTER && !held.swap(true, Ordering::Relaxed) {
            next_order().expect("the test goes on");
        }
    });
    match trained {
        Ok(model) => say(format!("end {:?}", model.weights)),
        Err(error) => say(format!("end with {error}")),
    }
}

/// Returns the weights after all steps, each of which takes a quarter of the way that is left. The
/// numbers are exact.
fn expected() -> String {
    let taken = 1.0 - 0.75f64.powi(STEPS as i32);
    format!("{:?}", [3.0, -1.0, 2.0, 5.0, 0.0, -4.0].map(|weight: f64| weight * taken))
}

/// Kills rank `victim` between two checkpoints.
fn lose(victim: usize, transport: &str) {
    let folder = std::env::temp_dir().join(format!("unisono-loop-{}", new_id().address().port()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let id = new_id();
    let mut ranks: Vec<Process> = (0..RANKS).map(|_| Process::start("trainer")).collect();
    for (number, process) in ranks.iter_mut().enumerate() {
        process.order(&format!("{id} {number} {transport} {}", folder.display()));
    }
    for process in &ranks {
        assert_eq!(process.read_until(&format!("step {HOLD_AFTER}")), RANKS.to_string());
    }
    ranks[victim].kill();
    ranks.remove(victim);
    ranks.iter_mut().for_each(|process| process.order("go on"));
    for process in &ranks {
        // The step after the newest checkpoint comes again, with two ranks.
        let again = process.read_until(&format!("step {}", STEPS_PER_CHECKPOINT + 1));
        assert_eq!(again, (RANKS - 1).to_string());
        assert_eq!(process.read_until(&format!("step {STEPS}")), (RANKS - 1).to_string());
        assert_eq!(process.read_until("end"), expected(), "{transport}, rank {victim} killed");
    }
    let files = std::fs::read_dir(&folder).expect("the folder").flatten();
    let mut names: Vec<_> = files.map(|file| file.file_name().into_string().expect("letters")).collect();
    names.sort();
    assert_eq!(names, ["step-12", "step-4", "step-8"], "every checkpoint is complete");
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn survivors_of_a_killed_rank_train_to_the_same_weights() {
    for _ in 0..times(1, 20) {
        for transport in ["shm", "tcp"] {
            (0..RANKS).for_each(|victim| lose(victim, transport));
        }
    }
}
