//! The one-shot kernel: every rank's lines into the mailboxes of all.

use super::results::{FACTOR, column, elements, expect, numbers};
use super::world::Memory;
use crate::emulator::Device;
use crate::material::Random;
use crate::naive::Naive;
use std::ptr::{from_mut, null};
use std::time::Duration;
use unisono_cuda::device::{Completion, Deadline, OneShotArgs, Protocol, ReduceCopy, WaitReport, WaitState};
use unisono_reducers::{Element, F8E4M3, F8E5M2, ReduceKind, as_bytes, bf16, f16};

const BLOCK_BYTES: usize = 128;
const BLOCKS_MAX: usize = 4;

/// Ranks with their mailboxes.
struct Ranks<'d> {
    device: &'d Device,
    lines: Protocol,
    mailboxes: Vec<Memory<'d>>,
    launches: Vec<[u64; BLOCKS_MAX]>,
    statuses: Vec<WaitReport>,
    limit: Duration,
}

/// Arguments of one rank.
struct Launch(OneShotArgs);

// SAFETY: its pointers are to memory that ranks share by design, or that its thread alone uses.
unsafe impl Sync for Launch {}

impl<'d> Ranks<'d> {
    fn new(device: &'d Device, lines: Protocol, ranks: usize) -> Self {
        let bytes = OneShotArgs::mailbox_bytes(lines, ranks, BLOCKS_MAX, BLOCK_BYTES);
        Self {
            device,
            lines,
            mailboxes: (0..ranks).map(|_| Memory::zeroed(device, bytes)).collect(),
            launches: vec![[0; BLOCKS_MAX]; ranks],
            statuses: vec![WaitReport::OK; ranks],
            limit: Duration::from_secs(60),
        }
    }

    /// All ranks' launches at once; `counts`: elements of each.
    fn run<T: Element>(&mut self, op: ReduceKind, memory: &[Memory], counts: &[usize]) {
        let (ranks, abort) = (self.mailboxes.len(), 0);
        let mailboxes: Vec<*mut u8> = self.mailboxes.iter().map(Memory::start).collect();
        let launch = |rank: usize| {
            Launch(OneShotArgs {
                input: memory[rank].start(),
                output: memory[rank].start(),
                mailboxes: mailboxes.as_ptr(),
                launches: self.launches[rank].as_mut_ptr(),
                bytes: (counts[rank] * size_of::<T>()) as u64,
                block_bytes: BLOCK_BYTES as u64,
                sequence: 9,
                fingerprint: op as u64,
                count: counts[rank] as u64,
                factor: ReduceCopy::factor(T::DTYPE, FACTOR),
                ranks: ranks as u32,
                rank: rank as u32,
                blocks_max: BLOCKS_MAX as u32,
                op: op as u32,
                divisor: ranks as u32,
                protocol: self.lines as u32,
                finalized: null(),
                deadline: Deadline {
                    abort: &abort,
                    report: from_mut(&mut self.statuses[rank]),
                    timeout_ns: self.limit.as_nanos() as u64,
                    failed: std::ptr::null_mut(),
                },
                completion: Completion::NONE,
            })
        };
        let launches: Vec<Launch> = (0..ranks).map(launch).collect();
        let (device, kernel) = (self.device, format!("one_shot_{}", T::DTYPE));
        std::thread::scope(|scope| {
            for launch in &launches {
                let (kernel, launch) = (&kernel, launch);
                scope.spawn(move || {
                    let Launch(arguments) = launch;
                    let blocks = arguments.bytes.div_ceil(arguments.block_bytes).max(1) as u32;
                    device.run(kernel, arguments, blocks, 32).unwrap();
                });
            }
        });
    }

    fn expect<T: Naive>(&mut self, op: ReduceKind, inputs: &[Vec<T>]) {
        let hold = |input: &Vec<T>| Memory::holding(self.device, as_bytes(input));
        let mut memory: Vec<Memory> = inputs.iter().map(hold).collect();
        let counts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        self.run::<T>(op, &memory, &counts);
        let expected: Vec<T> = (0..counts[0]).map(|index| column(op, inputs, index)).collect();
        for (rank, found) in memory.iter_mut().enumerate() {
            assert_eq!(self.statuses[rank].state(), Some(WaitState::Ok), "{:?}", self.statuses[rank]);
            expect(&elements::<T>(found), &expected, &format!("{op} of {} {}", counts[0], T::DTYPE));
        }
    }
}

/// Every operation, launch after launch, of lengths with and without whole lines and blocks.
fn all<T: Naive>(device: &Device, lines: Protocol, ranks: usize) {
    let mut world = Ranks::new(device, lines, ranks);
    let most = BLOCKS_MAX * BLOCK_BYTES / size_of::<T>();
    for (op, count) in ReduceKind::ON_GPU.into_iter().zip([most, 1, most / 3, 0, 7, most - 1]) {
        world.expect(op, &numbers::<T>(ranks, count));
    }
    let mut random = Random(T::DTYPE as u64);
    let inputs: Vec<Vec<T>> = (0..ranks).map(|_| random.elements(50)).collect();
    ReduceKind::ON_GPU.into_iter().for_each(|op| world.expect(op, &inputs));
}

#[test]
fn one_shots_reduce_in_rank_order() {
    let Some(device) = Device::new("one_shot.so", &["kernels/one_shot.cu"]) else { return };
    all::<i8>(&device, Protocol::Ll, 2);
    all::<bf16>(&device, Protocol::Ll, 3);
    all::<f32>(&device, Protocol::Ll, 5);
    all::<f64>(&device, Protocol::Ll, 1);
    all::<F8E5M2>(&device, Protocol::Ll, 2);
    every_type_in_wide_lines(&device);
    for lines in [Protocol::Ll, Protocol::Ll128] {
        flags_begin_again(&device, lines);
        others_do_something_else(&device, lines);
        nobody_else_comes(&device, lines);
    }
}

fn every_type_in_wide_lines(device: &Device) {
    let lines = Protocol::Ll128;
    all::<i8>(device, lines, 2);
    all::<u8>(device, lines, 1);
    all::<i32>(device, lines, 3);
    all::<u32>(device, lines, 2);
    all::<i64>(device, lines, 5);
    all::<u64>(device, lines, 4);
    all::<f16>(device, lines, 2);
    all::<bf16>(device, lines, 3);
    all::<f32>(device, lines, 5);
    all::<f64>(device, lines, 2);
    all::<F8E4M3>(device, lines, 3);
    all::<F8E5M2>(device, lines, 2);
}

/// Across the launch after which flags are those of long ago, all lines having been written before.
fn flags_begin_again(device: &Device, lines: Protocol) {
    let mut world = Ranks::new(device, lines, 2);
    let most = BLOCKS_MAX * BLOCK_BYTES / 4;
    for (first, count) in [((1 << 20) - 2, 1), ((1 << 31) - 2, most)] {
        world.launches.fill([first; BLOCKS_MAX]);
        (0..4).for_each(|_| world.expect(ReduceKind::Sum, &numbers::<i32>(2, count)));
    }
}

fn others_do_something_else(device: &Device, lines: Protocol) {
    let mut world = Ranks::new(device, lines, 2);
    let memory = [(); 2].map(|()| Memory::zeroed(device, 400));
    world.run::<f32>(ReduceKind::Max, &memory, &[100, 50]);
    for (rank, status) in world.statuses.iter().enumerate() {
        assert_eq!(status.state(), Some(WaitState::Mismatch), "{status:?}");
        assert_eq!((status.rank, status.peer), (rank as u32, 1 - rank as u32));
        assert_eq!((status.local_tag[2], status.remote_tag[2]), ([100, 50][rank], [50, 100][rank]));
    }
}

fn nobody_else_comes(device: &Device, lines: Protocol) {
    let mut world = Ranks::new(device, lines, 2);
    let memory = [(); 2].map(|()| Memory::zeroed(device, 400));
    world.limit = Duration::from_millis(50);
    world.launches[1] = [1; BLOCKS_MAX];
    // A rank in another launch is none that comes.
    world.run::<f32>(ReduceKind::Max, &memory, &[100, 100]);
    let [first, second] = &world.statuses[..] else { panic!("two ranks") };
    assert_eq!((first.state(), first.peer, first.step), (Some(WaitState::TimedOut), 1, 0), "{first:?}");
    assert_eq!((second.state(), second.peer, second.step), (Some(WaitState::TimedOut), 0, 1), "{second:?}");
}
