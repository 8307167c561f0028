//! Attempts to join that fail leave no memory in use.

use crate::world::{config, gpu, run_in_own_process, staged_config};
use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::process::Command;
use tracing::field::Field;
use tracing::{Event, Metadata, Subscriber, span};
use unisono::device::Gpu;
use unisono::{Communicator, Transport, UniqueId};
use unisono_cuda::emulator;

const ATTEMPTS: usize = 50;
/// Tells the second process the address of the bootstrap.
const MEETING: &str = "UNISONO_TEST_DEVICE_FAILED_JOINS";

/// Makes a kernel too large for the GPU once the ranks have agreed on the form of their lines.
///
/// By then, all ranks have found that their kernels fit. They look once more when they make their
/// endpoints, after they have opened each other's memory.
struct GrowingKernel;

impl Subscriber for GrowingKernel {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "device"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" && format!("{value:?}") == "lines" {
                emulator::set_oversized_kernel("schedule_double").unwrap();
            }
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn fail_to_join(comm: &Communicator, gpu: &Gpu) {
    let joined = tracing::subscriber::with_default(GrowingKernel, || comm.to_device(gpu).map(drop));
    let error = joined.unwrap_err().to_string();
    assert!(error.contains("schedule_double do not fit"), "{error}");
}

/// Lets the kernel fit again, and returns the number of allocations in use on the GPU, in
/// page-locked memory, and in other processes.
fn allocations_in_use(gpu: &Gpu) -> [u64; 3] {
    emulator::set_oversized_kernel("none").unwrap();
    gpu.release_unused().unwrap();
    let pairs = [
        ("cuMemAlloc", "cuMemFree"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuIpcOpenMemHandle", "cuIpcCloseMemHandle"),
    ];
    let count = |function| emulator::call_count(function).unwrap();
    pairs.map(|(allocate, free)| count(allocate) - count(free))
}

/// Asserts that the last of many attempts leaves as much in use as the first one.
fn assert_unchanged(mut attempt: impl FnMut() -> [u64; 3]) {
    let first = attempt();
    let later: Vec<_> = (1..ATTEMPTS).map(|_| attempt()).collect();
    assert!(later.iter().all(|in_use| *in_use == first), "{first:?}, then {later:?}");
}

/// The counts are those of the process, so the test runs in its own.
#[test]
fn failed_joins_of_threads_leave_no_memory_in_use() {
    // An unused GPU gives all memory back, so this one is kept in use.
    let Some(gpu) = gpu().filter(|gpu| gpu.is_emulated()) else { return };
    if !run_in_own_process("failed_joins::failed_joins_of_threads_leave_no_memory_in_use") {
        return;
    }
    for config in [config(), staged_config()] {
        let comms = Communicator::builder().config(&config).local(2).unwrap();
        assert_unchanged(|| {
            std::thread::scope(|scope| {
                let gpu = &gpu;
                let rank = |comm| scope.spawn(move || fail_to_join(comm, gpu));
                let threads: Vec<_> = comms.iter().map(rank).collect();
                threads.into_iter().for_each(|thread| thread.join().expect("a rank panicked"));
            });
            allocations_in_use(&gpu)
        });
    }
}

#[test]
fn failed_joins_of_processes_leave_no_memory_in_use() {
    const TEST: &str = "failed_joins::failed_joins_of_processes_leave_no_memory_in_use";
    if let Ok(id) = std::env::var(MEETING) {
        return fail_in_process(&id.parse().unwrap(), 1);
    }
    if gpu().is_none_or(|gpu| !gpu.is_emulated()) || !run_in_own_process(TEST) {
        return;
    }
    let id = UniqueId::new(Ipv4Addr::LOCALHOST.into()).unwrap();
    let mut second = Command::new(std::env::current_exe().unwrap());
    let mut second = second.args([TEST, "--exact"]).env(MEETING, id.to_string()).spawn().unwrap();
    fail_in_process(&id, 0);
    assert!(second.wait().unwrap().success(), "the second process failed");
}

fn fail_in_process(id: &UniqueId, rank: usize) {
    let gpu = gpu().unwrap();
    let comm = Communicator::join(id, rank, 2, &config().with_transport(Transport::Tcp)).unwrap();
    assert_unchanged(|| {
        fail_to_join(&comm, &gpu);
        allocations_in_use(&gpu)
    });
}
