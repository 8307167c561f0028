//! A driver that waits for running kernels before it allocates, pins, frees, loads, or copies
//! pageable memory. Ranks that are ahead wait in kernels meanwhile, so such a call would never end.

use crate::world::{config_with_timeout, gpu, run, run_in_own_process};
use std::sync::Barrier;
use std::time::Duration;
use unisono::device::{Buffer, DeviceCommunicator, Stream};
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
use unisono::{Result, Sum};
use unisono_cuda::emulator;

const RANKS: usize = 3;
const COUNT: usize = 3000;

/// Runs `body` on every rank of a driver that waits, in a process of its own.
fn run_waiting(test: &str, body: impl Fn(DeviceCommunicator, Stream) + Sync) {
    if gpu().is_none_or(|gpu| !gpu.is_emulated()) || !run_in_own_process(test) {
        return;
    }
    let waits =
        ["alloc-waits", "pinned-alloc-waits", "free-waits", "pageable-copy-waits", "module-load-waits"];
    for rule in waits {
        assert!(emulator::set_rule(rule, true).unwrap(), "{rule}");
    }
    // A busy machine does not reach the limit, which ends a deadlock.
    run(RANKS, &config_with_timeout(Duration::from_secs(60)), body);
}

struct Buffers {
    one: Buffer<f32>,
    all: Buffer<f32>,
    other: Buffer<f32>,
}

impl Buffers {
    fn new(comm: &DeviceCommunicator) -> Self {
        let upload = |count| comm.gpu().upload(&vec![1.0f32; count]).unwrap();
        Self { one: upload(COUNT), all: upload(RANKS * COUNT), other: upload(RANKS * COUNT) }
    }
}

fn call(
    comm: &DeviceCommunicator,
    stream: &Stream,
    collective: Collective,
    buffers: &mut Buffers,
) -> Result<()> {
    let Buffers { one, all, other } = buffers;
    let is_root = comm.rank() == 0;
    match collective {
        Collective::AllReduce => comm.all_reduce_into(stream, one, &mut other.view_mut(..COUNT), Sum),
        Collective::AllGather => comm.all_gather(stream, one, other),
        Collective::ReduceScatter => comm.reduce_scatter(stream, all, &mut other.view_mut(..COUNT), Sum),
        Collective::Broadcast => comm.broadcast(stream, one, 0),
        Collective::Reduce => {
            let output = &mut other.view_mut(..COUNT);
            comm.reduce_into(stream, one, is_root.then_some(output), Sum, 0)
        }
        Collective::Gather => comm.gather(stream, one, is_root.then_some(other), 0),
        Collective::Scatter => comm.scatter(stream, is_root.then_some(all), &mut other.view_mut(..COUNT), 0),
        Collective::AllToAll => comm.all_to_all(stream, all, other),
        Collective::Barrier => comm.barrier(stream),
        Collective::Scan | Collective::ExScan => unreachable!("scans run on CPU ranks"),
    }
}

/// The first use of each algorithm writes its tables while peers wait for it in their kernels.
#[test]
fn first_uses_wait_for_no_running_kernel() {
    let together = Barrier::new(RANKS);
    run_waiting("waiting_driver::first_uses_wait_for_no_running_kernel", |comm, stream| {
        let mut buffers = Buffers::new(&comm);
        let spec = GroupSpec::new(RANKS);
        let is_run = |row: &&Algorithm| {
            !row.collective.is_scan() && row.peer_access != PeerAccess::ZeroCopy && (row.supports)(&spec)
        };
        together.wait();
        for (turn, algorithm) in Algorithm::ALL.iter().filter(is_run).enumerate() {
            if turn % RANKS == comm.rank() {
                // The others are in their kernels by now.
                std::thread::sleep(Duration::from_millis(5));
            }
            comm.set_algorithm(algorithm.collective, Some(algorithm.name)).unwrap();
            let called = call(&comm, &stream, algorithm.collective, &mut buffers);
            called.unwrap_or_else(|error| panic!("{algorithm:?}: {error}"));
        }
        comm.all_reduce_into(&stream, &buffers.one, &mut buffers.other.view_mut(..COUNT), Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        together.wait();
        assert_eq!(buffers.other.view(..COUNT).to_vec(&stream).unwrap(), [RANKS as f32; COUNT]);
        together.wait();
    });
}

/// The same for groups, uneven shares, and symmetric memory.
#[test]
fn tables_of_calls_wait_for_no_running_kernel() {
    let together = Barrier::new(RANKS);
    run_waiting("waiting_driver::tables_of_calls_wait_for_no_running_kernel", |comm, stream| {
        let mut buffers = Buffers::new(&comm);
        let mut symmetric = comm.alloc_symmetric::<f32>(60_000).unwrap();
        let (rank, next, previous) = (comm.rank(), (comm.rank() + 1) % RANKS, (comm.rank() + 2) % RANKS);
        together.wait();
        for turn in 1..6 {
            if turn % RANKS == rank {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Other lengths in every turn need other tables.
            let counts = [turn * 10, turn, 0];
            let share = &buffers.one.view(..counts[rank]);
            comm.all_gather_v(&stream, share, &mut buffers.other.view_mut(..turn * 11), &counts).unwrap();
            let Buffers { one, other, .. } = &mut buffers;
            let (sent, target) = (one.view(..turn * 100), &mut other.view_mut(..turn * 100));
            comm.group(&stream, |group| {
                group.send(&sent, next).recv(target, previous);
            })
            .unwrap();
            comm.all_reduce(&stream, &mut symmetric.view_mut(..turn * 10_000), Sum).unwrap();
        }
        comm.synchronize(&stream).unwrap();
        together.wait();
        assert_eq!(buffers.other.view(..500).to_vec(&stream).unwrap(), [1.0; 500]);
        assert_eq!(symmetric.to_vec(&stream).unwrap(), [0.0; 60_000]);
        together.wait();
    });
}

/// Ranks of one GPU reach each other directly, however slowly the driver lets them join.
#[test]
fn join_stages_nothing_on_one_gpu() {
    run_waiting("waiting_driver::join_stages_nothing_on_one_gpu", |comm, _| {
        assert!((0..comm.size()).all(|peer| !comm.is_staged(peer)), "ranks of one GPU are staged");
    });
}
