//! Ranks are neighbors of those whose GPUs they reach best.

use crate::world::{config, gpu, run_in_own_process};
use std::path::Path;
use std::process::Command;
use std::thread::scope;
use unisono::device::{DeviceCommunicator, Gpu, Stream};
use unisono::schedule::{Algorithm, Collective};
use unisono::{Communicator, Sum};
use unisono_cuda::emulator;

/// Runs `body` on four ranks with a GPU each.
///
/// GPUs 0 and 2 have direct access to each other, and so have 1 and 3. Data between the pairs goes
/// through the host. The body runs in its own process, of the test of this name.
fn in_pairs(test: &str, body: impl Fn(DeviceCommunicator, Stream) + Sync) {
    if gpu().is_none_or(|gpu| !gpu.is_emulated()) || !run_in_own_process(test) {
        return;
    }
    emulator::set_gpu_count(4).unwrap();
    for (gpu, peer) in (0..4).flat_map(|gpu| (0..4).map(move |peer| (gpu, peer))) {
        let direct = gpu % 2 == peer % 2;
        let path = unisono_cuda::device::PeerPath { direct, rank: 1, atomics: direct };
        emulator::set_peer_path(gpu, peer, path).unwrap();
    }
    let rank = |comm: Communicator| {
        let gpu = Gpu::open(comm.rank()).unwrap();
        let (comm, stream) = (comm.to_device(&gpu).unwrap(), gpu.stream().unwrap());
        assert_eq!(comm.ring_order(), [0, 2, 1, 3]);
        body(comm, stream)
    };
    let comms = Communicator::builder().config(&config()).local(4).unwrap();
    scope(|scope| {
        comms.into_iter().for_each(|comm| drop(scope.spawn(|| rank(comm))));
    });
}

/// GPUs in a circle have direct access to their neighbors. Rings use nothing else, and everything
/// else goes through the host.
#[test]
fn staged_paths_leave_direct_ones_as_they_are() {
    const TEST: &str = "topology::staged_paths_leave_direct_ones_as_they_are";
    if gpu().is_none_or(|gpu| !gpu.is_emulated()) || !run_in_own_process(TEST) {
        return;
    }
    emulator::set_gpu_count(4).unwrap();
    for gpu in 0..4 {
        let path = unisono_cuda::device::PeerPath { direct: false, rank: 1, atomics: false };
        emulator::set_peer_path(gpu, (gpu + 2) % 4, path).unwrap();
    }
    let comms = Communicator::builder().config(&config()).local(4).unwrap();
    scope(|scope| {
        for comm in comms {
            scope.spawn(move || {
                let gpu = Gpu::open(comm.rank()).unwrap();
                let (comm, stream) = (comm.to_device(&gpu).unwrap(), gpu.stream().unwrap());
                for name in ["ring", "recursive_doubling", "ring"] {
                    comm.set_algorithm(Collective::AllReduce, Some(name)).unwrap();
                    for count in [5, 2000, 50_000] {
                        let mut values = gpu.upload(&vec![comm.rank() as i32; count]).unwrap();
                        comm.all_reduce(&stream, &mut values, Sum).unwrap();
                        comm.synchronize(&stream).unwrap();
                        assert_eq!(values.to_vec(&stream).unwrap(), vec![6; count], "{name}");
                    }
                }
                assert_eq!(comm.ring_order(), [0, 1, 2, 3]);
            });
        }
    });
}

#[test]
fn ring_prefers_more_links_where_counted() {
    const TEST: &str = "topology::ring_prefers_more_links_where_counted";
    if gpu().is_none_or(|gpu| !gpu.is_emulated()) {
        return;
    }
    if std::env::var_os(COUNTED).is_none() {
        return count_links(TEST);
    }
    emulator::set_gpu_count(4).unwrap();
    scope(|scope| {
        for comm in Communicator::builder().config(&config()).local(4).unwrap() {
            scope.spawn(move || {
                let gpu = Gpu::open(comm.rank()).unwrap();
                // Four links between 0 and 2, and between 1 and 3; one link between 0 and 1, and
                // between 2 and 3.
                let comm = comm.to_device(&gpu).unwrap();
                assert_eq!(comm.ring_order(), [0, 2, 3, 1]);
                assert!(!comm.uses_ll128(), "no link between 0 and 3");
            });
        }
    });
    assert_eq!([[0, 2], [0, 1], [0, 3], [0, 0]].map(uses_ll128), [true, true, false, true]);
}

/// Returns true if two ranks on these GPUs use lines of 16 bytes.
fn uses_ll128(gpus: [usize; 2]) -> bool {
    let comms = Communicator::builder().config(&config()).local(2).unwrap();
    scope(|scope| {
        let rank = |comm: Communicator| {
            scope.spawn(move || {
                let gpu = Gpu::open(gpus[comm.rank()]).unwrap();
                comm.to_device(&gpu).unwrap().uses_ll128()
            })
        };
        let ranks: Vec<_> = comms.into_iter().map(rank).collect();
        ranks.into_iter().all(|rank| rank.join().unwrap())
    })
}

/// Tells a process that a stand-in for NVML is loaded.
const COUNTED: &str = "UNISONO_TEST_DEVICE_LINK_COUNTS";

/// Starts a process of this test that loads a stand-in for NVML.
fn count_links(test: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("links-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/tests/gpu/nvml.cpp");
    compiler.args(["-shared", "-fPIC", source, "-o"]).arg(folder.join("libnvidia-ml.so.1"));
    assert!(compiler.status().unwrap().success());
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([test, "--exact"]).env(COUNTED, "1").env("LD_LIBRARY_PATH", &folder);
    assert!(process.status().unwrap().success(), "{test}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn ring_follows_best_paths() {
    in_pairs("topology::ring_follows_best_paths", |comm, stream| {
        let (gpu, rank) = (comm.gpu(), comm.rank() as i32);
        let mut values = gpu.upload(&vec![rank + 1; 3000]).unwrap();
        comm.set_algorithm(Collective::AllReduce, Some("ring")).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        let mut gathered = gpu.alloc::<i32>(4 * 500).unwrap();
        let share = gpu.upload(&[rank; 500]).unwrap();
        comm.set_algorithm(Collective::AllGather, Some("ring")).unwrap();
        comm.all_gather(&stream, &share, &mut gathered).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), vec![10; 3000]);
        let expected: Vec<i32> = (0..4).flat_map(|rank| [rank; 500]).collect();
        assert_eq!(gathered.to_vec(&stream).unwrap(), expected);
    });
}

/// More elements than a slot holds.
const COUNT: usize = 1500;

#[test]
fn rooted_collectives_follow_best_paths() {
    in_pairs("topology::rooted_collectives_follow_best_paths", |comm, stream| {
        let rooted = ["chain", "tree", "binomial", "linear"];
        let rows =
            Algorithm::ALL.iter().filter(|row| row.collective.has_root() && rooted.contains(&row.name));
        for (row, root) in rows.flat_map(|row| (0..4).map(move |root| (row, root))) {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            from_root(&comm, &stream, row.collective, root);
            assert_eq!(comm.last_algorithm().map(|last| last.name), Some(row.name));
        }
    });
}

/// Returns a value for a rank and an index.
fn element(rank: usize, index: usize) -> i32 {
    (rank * 100_000 + index) as i32
}

/// Runs one operation and checks its results.
fn from_root(comm: &DeviceCommunicator, stream: &Stream, collective: Collective, root: usize) {
    let (gpu, rank, at_root) = (comm.gpu(), comm.rank(), comm.rank() == root);
    let elements: Vec<i32> = (0..COUNT).map(|index| element(rank, index)).collect();
    let all_elements: Vec<i32> = (0..4 * COUNT).map(|index| element(index / COUNT, index % COUNT)).collect();
    let (small, large) = (gpu.upload(&elements).unwrap(), gpu.upload(&all_elements).unwrap());
    let (mut share, mut gathered) = (gpu.upload(&elements).unwrap(), gpu.alloc::<i32>(4 * COUNT).unwrap());
    let (called, expected) = match collective {
        Collective::Broadcast => {
            (comm.broadcast(stream, &mut share, root), (0..COUNT).map(|index| element(root, index)).collect())
        }
        Collective::Reduce => {
            let sum = |index| (0..4).map(|rank| element(rank, index)).sum();
            let sums: Vec<i32> = (0..COUNT).map(sum).collect();
            (comm.reduce(stream, &mut share, Sum, root), if at_root { sums } else { elements })
        }
        Collective::Gather => {
            let called = comm.gather(stream, &small, at_root.then_some(&mut gathered), root);
            (called, if at_root { all_elements } else { vec![0; 4 * COUNT] })
        }
        _ => (comm.scatter(stream, at_root.then_some(&large), &mut share, root), elements),
    };
    called.and_then(|()| comm.synchronize(stream)).unwrap();
    let found = if collective == Collective::Gather { &gathered } else { &share };
    assert!(found.to_vec(stream).unwrap() == expected, "{collective} from {root} at {rank}");
}

/// The result of a chain of sums to rank 1 depends on the order: by rank numbers, the two large
/// values would be added first.
#[test]
fn chain_sum_follows_ring_order() {
    let values = [1.0, 0.0, 1e8, -1e8];
    in_pairs("topology::chain_sum_follows_ring_order", |comm, stream| {
        comm.set_algorithm(Collective::Reduce, Some("chain")).unwrap();
        let mut value = comm.gpu().upload(&[values[comm.rank()] as f32]).unwrap();
        comm.reduce(&stream, &mut value, Sum, 1).unwrap();
        comm.synchronize(&stream).unwrap();
        if comm.rank() == 1 {
            // The ring order is 3, 0, 2, 1; by rank numbers it would be 2, 3, 0, 1.
            assert_eq!(value.to_vec(&stream).unwrap(), [((-1e8f32 + 1.0) + 1e8) + 0.0]);
        }
    });
}
