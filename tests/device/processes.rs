//! Tests of two processes as two ranks. Each process maps the memory of the other, or sends through
//! the host.

use crate::world::{config, gpu, run_in_own_process, staged_config};
use std::collections::HashSet;
use std::process::Command;
use std::time::Instant;
use unisono::schedule::Collective;
use unisono::{Communicator, Sum, Transport, UniqueId};
use unisono_transports::testing::HANG;

/// Tells the second process the address of the bootstrap.
const MEETING: &str = "UNISONO_TEST_DEVICE_MEETING";
const TEST: &str = "processes::two_processes_are_two_ranks";

#[test]
fn two_processes_are_two_ranks() {
    if let Ok(id) = std::env::var(MEETING) {
        return exchange(&id.parse().unwrap(), 1);
    }
    // The test counts addresses, and other tests of the same process allocate memory as well.
    if gpu().is_none() || !run_in_own_process(TEST) {
        return;
    }
    let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
    let mut second = Command::new(std::env::current_exe().unwrap());
    let mut second = second.args([TEST, "--exact"]).env(MEETING, id.to_string()).spawn().unwrap();
    exchange(&id, 0);
    assert!(second.wait().unwrap().success(), "the second process failed");
}

fn exchange(id: &UniqueId, rank: usize) {
    let config = config().with_transport(Transport::Tcp);
    let comm = Communicator::join(id, rank, 2, &config).unwrap();
    reduce(&comm, &["ring", "twoshot"]);
    reduce_symmetric(&comm);
    let id = share(&comm);
    let config = staged_config().with_transport(Transport::Tcp);
    reduce(&Communicator::join(&id, rank, 2, &config).unwrap(), &["ring"]);
}

/// Returns the unique id of the next bootstrap, which rank 0 makes.
fn share(comm: &Communicator) -> UniqueId {
    let mut text = [0u8; 256];
    let own_id = (comm.rank() == 0).then(|| UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap());
    if let Some(id) = &own_id {
        let id = id.to_string();
        text[..id.len()].copy_from_slice(id.as_bytes());
    }
    comm.broadcast(&mut text, 0).unwrap();
    own_id.unwrap_or_else(|| std::str::from_utf8(&text).unwrap().trim_end_matches('\0').parse().unwrap())
}

/// Each rank reads and writes the other's symmetric buffer in place.
fn reduce_symmetric(comm: &Communicator) {
    let (gpu, rank) = (gpu().expect("a compiler"), comm.rank());
    let comm = comm.to_device(&gpu).unwrap();
    let stream = gpu.stream().unwrap();
    let mut values = comm.alloc_symmetric::<f32>(30_000).unwrap();
    values.write(&stream, &vec![rank as f32 + 1.0; 30_000]).unwrap();
    for _ in 0..2 {
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
    }
    assert_eq!(comm.last_algorithm().map(|row| row.name), Some("zero_copy"));
    comm.synchronize(&stream).unwrap();
    assert_eq!(values.to_vec(&stream).unwrap(), vec![6.0; 30_000]);
    drop(values);
    let addresses: HashSet<u64> =
        (0..6).map(|_| comm.alloc_symmetric::<f32>(30_000).unwrap().address()).collect();
    assert!(
        addresses.len() <= 2,
        "memory that the other process has closed is exported again: {addresses:?}"
    );
}

fn reduce(comm: &Communicator, algorithms: &[&str]) {
    let (gpu, rank) = (gpu().expect("a compiler"), comm.rank());
    let comm = comm.to_device(&gpu).unwrap();
    let stream = gpu.stream().unwrap();
    for name in algorithms {
        comm.set_algorithm(Collective::AllReduce, Some(name)).unwrap();
        let mut values = gpu.upload(&vec![rank as f32 + 1.0; 3000]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), vec![3.0; 3000], "{name}");
    }
    let begun = Instant::now();
    drop(comm);
    assert!(begun.elapsed() < HANG, "peers were through, after {:?}", begun.elapsed());
}
