//! Two processes meet, exchange messages and leave.
//!
//! `cargo run --release --example 02_two_processes` starts the second process itself. Under a
//! launcher (`unisono run -n 2 -- target/release/examples/02_two_processes`, or torchrun) the
//! program joins the launcher's world.

use std::process::Command;
use unisono::{Communicator, Sum, UniqueId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("RANK").is_some() {
        return Ok(rank_main(&Communicator::from_env()?)?);
    }
    // A launcher makes an id and gives it to every process together with the rank.
    let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?.to_string();
    let start = |rank: &str| {
        Command::new(std::env::current_exe()?)
            .envs([("RANK", rank), ("WORLD_SIZE", "2"), ("UNISONO_ID", &id)])
            .spawn()
    };
    for mut child in [start("0")?, start("1")?] {
        if !child.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(())
}

fn rank_main(comm: &Communicator) -> unisono::Result<()> {
    let peer = 1 - comm.rank();

    // A group of a send and a receive cannot deadlock, in whatever order the ranks arrive.
    let (greeting, mut answer) = ([comm.rank() as u64 + 100], [0]);
    comm.send_recv(&greeting, peer, &mut answer, peer)?;
    assert_eq!(answer, [peer as u64 + 100]);

    // The transport between the ranks carries a megabyte: shared memory on one host, TCP between
    // hosts.
    let mut values = vec![1.0f32; 1 << 18];
    comm.all_reduce(&mut values, Sum)?;
    assert!(values.iter().all(|&value| value == 2.0));
    println!("rank {} (pid {}) over {}: all well", comm.rank(), std::process::id(), comm.transport());
    comm.barrier()
}
