//! Exchanges through FIFOs on the emulator: correct, free of races, and never without end.

use crate::emulator::Device;
use crate::race_program::RaceProgram;
use std::ptr::from_mut;
use std::time::{Duration, Instant};
use unisono_cuda::device::{Channel, Deadline, Exchange, Fifo, WaitReport, WaitState};

const SLOTS: usize = 2;
const SLOT_BYTES: usize = 256;
const BYTES: usize = 3000;

/// Two ranks on one device.
struct Pair {
    inputs: [Vec<u8>; 2],
    outputs: [Vec<u8>; 2],
    slots: [Vec<u128>; 2],
    tails: [u64; 2],
    heads: [u64; 2],
    abort: u32,
    status: WaitReport,
}

impl Pair {
    fn new() -> Self {
        let input = |rank: usize| (0..BYTES).map(|index| (index * (rank + 3) % 251) as u8).collect();
        Self {
            inputs: [input(0), input(1)],
            outputs: [vec![0; BYTES], vec![0; BYTES]],
            slots: [vec![0; SLOTS * SLOT_BYTES / 16], vec![0; SLOTS * SLOT_BYTES / 16]],
            tails: [0; 2],
            heads: [0; 2],
            abort: 0,
            status: WaitReport::OK,
        }
    }

    /// The FIFO to `rank`.
    fn fifo(&mut self, rank: usize) -> Fifo {
        Fifo {
            slots: self.slots[rank].as_mut_ptr().cast(),
            tail: &mut self.tails[rank],
            head: &mut self.heads[rank],
            slot_count: SLOTS as u32,
            slot_bytes: SLOT_BYTES as u32,
        }
    }

    fn channel(&mut self, rank: usize) -> Channel {
        Channel {
            input: self.inputs[rank].as_ptr(),
            output: self.outputs[rank].as_mut_ptr(),
            bytes: BYTES as u64,
            out: self.fifo(1 - rank),
            into: self.fifo(rank),
            step: 0,
            rank: rank as u32,
            peer: 1 - rank as u32,
        }
    }

    fn arguments(&mut self, channels: &[Channel], limit: Duration) -> Exchange {
        let status = from_mut(&mut self.status);
        let patience = Deadline {
            abort: &self.abort,
            report: status,
            timeout_ns: limit.as_nanos() as u64,
            failed: std::ptr::null_mut(),
        };
        Exchange { channels: channels.as_ptr(), deadline: patience }
    }
}

fn device(name: &str) -> Option<Device> {
    Device::new(name, &["kernels/exchange.cu", "tests/kernels/astray.cu"])
}

#[test]
fn ranks_exchange_and_waits_end() {
    let Some(device) = device("exchange.so") else { return };
    swap(&device);
    give_up_on_an_absent_peer(&device);
    end_when_the_host_says_so(&device);
    refuse_what_does_not_fit(&device);
    find_barrier_deadlocks(&device);
    find_stores_outside(&device);
}

fn swap(device: &Device) {
    for seed in 0..20 {
        device.set_seed(seed);
        let mut pair = Pair::new();
        let channels = [pair.channel(0), pair.channel(1)];
        let arguments = pair.arguments(&channels, Duration::from_secs(60));
        device.run_cooperative("exchange", &arguments, 2, 32).unwrap();
        assert_eq!(pair.status.state(), Some(WaitState::Ok), "{:?}", pair.status);
        assert!(pair.outputs[0] == pair.inputs[1] && pair.outputs[1] == pair.inputs[0], "seed {seed}");
    }
}

fn give_up_on_an_absent_peer(device: &Device) {
    let mut pair = Pair::new();
    let channels = [pair.channel(0)];
    let arguments = pair.arguments(&channels, Duration::from_millis(50));
    let start = Instant::now();
    device.run("exchange", &arguments, 1, 32).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(50), "gave up after {:?}", start.elapsed());
    let WaitReport { rank, peer, step, wanted, seen, .. } = pair.status;
    assert_eq!(pair.status.state(), Some(WaitState::TimedOut));
    assert_eq!((rank, peer, step, wanted, seen), (0, 1, 0, 1, 0), "who waited for whom, where, for what");
}

fn end_when_the_host_says_so(device: &Device) {
    let mut pair = Pair::new();
    pair.abort = 1;
    let channels = [pair.channel(1)];
    let arguments = pair.arguments(&channels, Duration::from_secs(3600));
    device.run("exchange", &arguments, 1, 32).unwrap();
    assert_eq!(pair.status.state(), Some(WaitState::Aborted));
    assert_eq!((pair.status.rank, pair.status.peer), (1, 0));
}

fn refuse_what_does_not_fit(device: &Device) {
    device.set_residents(1);
    let mut pair = Pair::new();
    let channels = [pair.channel(0), pair.channel(1)];
    let arguments = pair.arguments(&channels, Duration::from_secs(60));
    let refused = device.run_cooperative("exchange", &arguments, 2, 32).unwrap_err();
    assert_eq!(refused, "2 blocks do not fit: 1 can be resident");
    device.set_residents(64);
}

fn find_barrier_deadlocks(device: &Device) {
    for kernel in ["one_leaves", "two_barriers"] {
        let found = device.run(kernel, &[0u32; 4], 2, 32).unwrap_err();
        assert!(found.starts_with(&format!("barrier deadlock in {kernel}: thread ")), "{found}");
        assert!(found.contains("astray.cu:"), "{found}");
    }
    assert_eq!(device.run("nobody", &0u32, 1, 1).unwrap_err(), "no kernel nobody");
}

fn find_stores_outside(device: &Device) {
    let memory = device.allocate(100);
    // SAFETY: just allocated, and poisoned whole.
    assert!(unsafe { std::slice::from_raw_parts(memory, 100) }.iter().all(|&byte| byte == 0xa5));
    device.run("oversteps", &[memory as u64, 99], 1, 1).unwrap();
    assert_eq!(device.free(memory), Ok(()), "the last byte is inside");
    let memory = device.allocate(100);
    device.run("oversteps", &[memory as u64, 100], 1, 1).unwrap();
    assert_eq!(device.free(memory).unwrap_err(), "written outside of an allocation");
    assert_eq!(device.free(memory).unwrap_err(), "freed what was not allocated");
}

#[test]
fn a_race_detector_finds_planted_races_and_no_other() {
    let Some(exchange) = RaceProgram::exchange("exchange", "kernels/exchange.cu") else { return };
    (0..3).for_each(|seed| assert!(!exchange.finds_race(seed), "the protocol itself, seed {seed}"));
    for planted in ["relaxed_release", "missing_barrier", "early_credit", "too_many_slots"] {
        let source = format!("tests/kernels/races/exchange/{planted}.cu");
        let variant = RaceProgram::exchange(planted, &source).expect("a compiler");
        // A race shows in some orders in which the system runs threads. Most show in the first run.
        assert!((0..50).any(|seed| variant.finds_race(seed)), "{planted}");
    }
}
