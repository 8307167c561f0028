//! Repeated operations call the driver a few times only, and allocate no memory of GPUs. Those
//! without lists allocate no memory of the host either.

use crate::world::{config, gpu, run, run_in_own_process};
use std::collections::BTreeMap;
use std::sync::Barrier;
use unisono::device::{Buffer, DeviceCommunicator, Stream};
use unisono::schedule::Collective;
use unisono::{Result, Sum};
use unisono_cuda::emulator;

/// The buffers of one rank, for all operations.
struct Buffers {
    one: Buffer<f32>,
    all: Buffer<f32>,
    other: Buffer<f32>,
}

type Operation = (&'static str, u64, fn(&DeviceCommunicator, &Stream, &mut Buffers) -> Result<()>);

/// Name, greatest number of driver calls, and call of every operation.
const OPERATIONS: [Operation; 17] = [
    ("all_reduce", 2, |comm, stream, buffers| comm.all_reduce(stream, &mut buffers.one, Sum)),
    ("all_reduce_into", 2, |comm, stream, buffers| {
        comm.all_reduce_into(stream, &buffers.all, &mut buffers.other, Sum)
    }),
    ("all_gather", 2, |comm, stream, buffers| comm.all_gather(stream, &buffers.one, &mut buffers.all)),
    ("all_gather_in_place", 2, |comm, stream, buffers| comm.all_gather_in_place(stream, &mut buffers.all)),
    ("all_gather_v", 2, |comm, stream, buffers| {
        let counts = [COUNT, 2 * COUNT, 0];
        let count = counts[comm.rank()];
        comm.all_gather_v(stream, &buffers.other.view(..count), &mut buffers.all, &counts)
    }),
    ("reduce_scatter", 2, |comm, stream, buffers| {
        comm.reduce_scatter(stream, &buffers.all, &mut buffers.one, Sum)
    }),
    ("reduce_scatter_in_place", 2, |comm, stream, buffers| {
        comm.reduce_scatter_in_place(stream, &mut buffers.all, Sum)
    }),
    ("broadcast", 2, |comm, stream, buffers| comm.broadcast(stream, &mut buffers.one, 1)),
    ("reduce", 2, |comm, stream, buffers| comm.reduce(stream, &mut buffers.one, Sum, 2)),
    ("gather_in_place", 2, |comm, stream, buffers| {
        let length = if comm.rank() == 0 { RANKS * COUNT } else { COUNT };
        comm.gather_in_place(stream, &mut buffers.all.view_mut(..length), 0)
    }),
    ("scatter_in_place", 2, |comm, stream, buffers| {
        let length = if comm.rank() == 0 { RANKS * COUNT } else { COUNT };
        comm.scatter_in_place(stream, &mut buffers.all.view_mut(..length), 0)
    }),
    ("all_to_all", 2, |comm, stream, buffers| comm.all_to_all(stream, &buffers.all, &mut buffers.other)),
    ("all_to_all_in_place", 2, |comm, stream, buffers| comm.all_to_all_in_place(stream, &mut buffers.all)),
    // This algorithm needs a copy of the buffer first.
    ("all_to_all_in_place pairwise", 3, |comm, stream, buffers| {
        comm.set_algorithm(Collective::AllToAll, Some("pairwise"))?;
        comm.all_to_all_in_place(stream, &mut buffers.all)?;
        comm.set_algorithm(Collective::AllToAll, None)
    }),
    ("all_to_all_v", 2, |comm, stream, buffers| {
        let counts = [COUNT; RANKS];
        comm.all_to_all_v(stream, &buffers.all, &counts, &mut buffers.other, &counts)
    }),
    ("barrier", 2, |comm, stream, _| comm.barrier(stream)),
    ("send and recv", 2, |comm, stream, buffers| {
        let (next, previous) = ((comm.rank() + 1) % RANKS, (comm.rank() + RANKS - 1) % RANKS);
        let Buffers { one, other, .. } = buffers;
        let target = &mut other.view_mut(..COUNT);
        comm.group(stream, |group| {
            group.send(&*one, next).recv(target, previous);
        })
    }),
];

/// Allocations in host memory of calls that make lists of shares or of transfers.
const LISTS: [(&str, u64); 3] = [("all_gather_v", 1), ("all_to_all_v", 5), ("send and recv", 12)];
const RANKS: usize = 3;
const COUNT: usize = 700;
const REPETITIONS: u64 = 20;
/// Calls that allocate or free memory, or wait for it.
const MEMORY_CALLS: [&str; 7] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
];

/// Calls of this process by name, since the last ones.
fn calls_since(earlier: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let calls = emulator::calls().unwrap().into_iter();
    let new = calls.map(|(name, count)| {
        let more = count - earlier.get(&name).copied().unwrap_or(0);
        (name, more)
    });
    new.filter(|&(_, count)| count > 0).collect()
}

/// The counts are those of the process, so the test runs in its own.
#[test]
fn repeated_operations_make_few_driver_calls() {
    if gpu().is_none_or(|gpu| !gpu.is_emulated())
        || !run_in_own_process("driver_calls::repeated_operations_make_few_driver_calls")
    {
        return;
    }
    let (start, end) = (Barrier::new(RANKS), Barrier::new(RANKS));
    run(RANKS, &config(), |comm, stream| {
        let alloc = |count| comm.gpu().alloc::<f32>(count).unwrap();
        let mut buffers =
            Buffers { one: alloc(COUNT), all: alloc(RANKS * COUNT), other: alloc(RANKS * COUNT) };
        for (name, calls_max, operation) in OPERATIONS {
            let mut repeat = |times| {
                (0..times).for_each(|_| operation(&comm, &stream, &mut buffers).expect(name));
            };
            // The first use of a plan writes its tables.
            repeat(2);
            comm.synchronize(&stream).unwrap();
            start.wait();
            let known = emulator::calls().unwrap();
            start.wait();
            let mut heap = 0;
            for _ in 0..REPETITIONS {
                let (allocations, ()) = count_allocations(|| repeat(1));
                heap += allocations;
            }
            end.wait();
            let calls = calls_since(&known);
            end.wait();
            comm.synchronize(&stream).unwrap();
            let total: u64 = calls.values().sum();
            let allowed = RANKS as u64 * REPETITIONS * calls_max;
            assert!(total <= allowed, "{name}: {total} calls, more than {allowed}: {calls:?}");
            let of_memory = MEMORY_CALLS.map(|name| calls.get(name).copied().unwrap_or(0));
            assert_eq!(of_memory.iter().sum::<u64>(), 0, "{name}: {calls:?}");
            let lists_max = LISTS.iter().find(|(listed, _)| *listed == name).map_or(0, |(_, count)| *count);
            assert!(heap <= REPETITIONS * lists_max, "{name} allocates {heap} times in host memory");
        }
    });
}

/// Returns the number of allocations of this thread during `body`, and its result.
fn count_allocations<R>(body: impl FnOnce() -> R) -> (u64, R) {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(body()));
    (counted.count_total, result.expect("the body ran"))
}
