//! Ranks go on after others are killed: the survivors shrink the communicator and repeat the
//! average.
//!
//! `cargo run --release --example 07_fault_tolerance` starts five processes, of which two kill
//! themselves with SIGKILL. `unisono run --continue-on-failure -n 5 --
//! target/release/examples/07_fault_tolerance` does the same under the launcher.

use std::process::Command;
use std::time::Instant;
use unisono::{Avg, Communicator, UniqueId};

const RANKS: usize = 5;
const ROUNDS: usize = 300;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("RANK").is_some() {
        return Ok(rank_main(Communicator::from_env()?)?);
    }
    let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?.to_string();
    let start = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", RANKS.to_string()), ("UNISONO_ID", id.clone())])
            .spawn()
    };
    let ranks = (0..RANKS).map(start).collect::<Result<Vec<_>, _>>()?;
    for (rank, mut child) in ranks.into_iter().enumerate() {
        if child.wait()?.success() == dies_in(rank).is_some() {
            return Err(format!("rank {rank} ended otherwise than it should").into());
        }
    }
    Ok(())
}

fn rank_main(mut comm: Communicator) -> unisono::Result<()> {
    let number = comm.rank();
    let mut round = 0;
    while round < ROUNDS {
        if dies_in(number) == Some(round) {
            kill_this_process();
        }
        let mut values = vec![number as f64; 1 << 16];
        match comm.all_reduce(&mut values, Avg) {
            Ok(()) => round += 1,
            Err(error) => {
                println!("rank {number}: {error}");
                let begun = Instant::now();
                comm = comm.shrink()?;
                // Some ranks may have completed the round in which others failed: the lowest round
                // is right for all.
                round = agree(&comm, round)?;
                let (rank, ranks, time) = (comm.rank(), comm.size(), begun.elapsed());
                println!(
                    "rank {number} goes on as rank {rank} of {ranks} in round {round}, after {time:.0?}"
                );
            }
        }
    }
    let mut left = [number as f64];
    comm.all_reduce(&mut left, Avg)?;
    assert_eq!((comm.size(), left), (3, [7.0 / 3.0]), "ranks 0, 3 and 4 are left");
    Ok(())
}

/// Returns the lowest round of all ranks.
fn agree(comm: &Communicator, round: usize) -> unisono::Result<usize> {
    let mut first = [round as u64];
    comm.all_reduce(&mut first, unisono::Min)?;
    Ok(first[0] as usize)
}

/// Returns the round in which a rank is killed.
fn dies_in(number: usize) -> Option<usize> {
    [None, Some(100), Some(200), None, None][number]
}

fn kill_this_process() {
    let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    // The signal is on its way.
    std::thread::sleep(std::time::Duration::from_secs(10));
}
