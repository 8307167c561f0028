//! Two processes are two ranks: each opens the memory of the other.

use crate::world::{config, gpu};
use std::process::Command;
use unisono::schedule::{Collective, find};
use unisono::{Communicator, Sum, Transport, UniqueId};

/// Tells the second process where the ranks meet.
const MEETING: &str = "UNISONO_TEST_DEVICE_MEETING";
const TEST: &str = "processes::two_processes_are_two_ranks";

#[test]
fn two_processes_are_two_ranks() {
    if let Ok(id) = std::env::var(MEETING) {
        return exchange(&id.parse().unwrap(), 1);
    }
    if gpu().is_none() {
        return;
    }
    let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
    let mut second = Command::new(std::env::current_exe().unwrap());
    let mut second = second.args([TEST, "--exact"]).env(MEETING, id.to_string()).spawn().unwrap();
    exchange(&id, 0);
    assert!(second.wait().unwrap().success(), "the second process failed");
}

fn exchange(id: &UniqueId, rank: usize) {
    let gpu = gpu().expect("a compiler");
    let config = unisono::Config { transport: Transport::Tcp, ..config() };
    let comm = Communicator::join(id, rank, 2, &config).unwrap().on(&gpu).unwrap();
    let stream = gpu.stream().unwrap();
    for name in ["ring", "twoshot"] {
        comm.use_algorithm(find(Collective::AllReduce, name).unwrap());
        let mut values = gpu.upload(&vec![rank as f32 + 1.0; 3000]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), vec![3.0; 3000], "{name}");
    }
}
