//! Results of programs.

use super::algorithms::*;
use super::program::Program;
use super::world::{Job, Memory, Part, Size, World};
use crate::emulator::Device;
use crate::material::{Random, same};
use crate::naive::Naive;
use unisono_cuda::device::{Port, Protocol, ReduceCopy, WaitState};
use unisono_reducers::{
    Element, F8E4M3, F8E5M2, PostOp, ReduceKind, Scalar, as_bytes, as_bytes_mut, bf16, f16,
};

const CHANNELS: usize = 3;
const SLICE_BYTES: usize = 192;
const BLOCKS_MAX: usize = 4;

pub(super) fn size(ranks: usize) -> Size {
    Size {
        ranks,
        channels: CHANNELS,
        slots: 2,
        // The longest.
        slot_bytes: Port::slot_bytes(Protocol::Ll, BLOCKS_MAX, SLICE_BYTES),
        bank_bytes: BLOCKS_MAX * SLICE_BYTES,
    }
}

pub(super) fn job<T: Element>(op: ReduceKind, count: usize, parts: usize, shares: (usize, usize)) -> Job {
    let bytes = count * size_of::<T>();
    Job {
        kernel: format!("schedule_{}", T::DTYPE),
        protocol: Protocol::Simple,
        op,
        factor: ReduceCopy::factor(T::DTYPE, FACTOR),
        one: ReduceCopy::factor(T::DTYPE, Scalar::Int(1)),
        element: size_of::<T>(),
        parts,
        shares: (bytes / shares.0.max(1), bytes / shares.1.max(1)),
        slice_bytes: SLICE_BYTES,
        channels: 2,
        threads: 32,
    }
}

pub(super) const FACTOR: Scalar = Scalar::Int(3);

pub(super) fn elements<T: Element>(memory: &mut Memory) -> Vec<T> {
    let bytes = memory.bytes();
    let mut elements = vec![T::default(); bytes.len() / size_of::<T>()];
    as_bytes_mut(&mut elements).copy_from_slice(bytes);
    elements
}

/// Runs all ranks' programs on these inputs; the outputs.
pub(super) fn run_program<T: Element>(
    world: &mut World,
    job: &Job,
    program: &dyn Fn(usize) -> Program,
    inputs: &[Vec<T>],
    gotten: usize,
) -> Vec<Vec<T>> {
    let device = world.device;
    let inputs: Vec<Memory> = inputs.iter().map(|input| Memory::holding(device, as_bytes(input))).collect();
    let mut outputs: Vec<Memory> =
        inputs.iter().map(|_| Memory::new(device, gotten * size_of::<T>())).collect();
    let part = |rank| Some(Part { job: job.clone(), program: program(rank) });
    let parts: Vec<Option<Part>> = (0..world.size.ranks).map(part).collect();
    world.run(&parts, &inputs, &outputs);
    for rank in &world.ranks {
        assert_eq!(rank.status.state(), Some(WaitState::Ok), "{:?}", rank.status);
    }
    outputs.iter_mut().map(elements).collect()
}

pub(super) fn numbers<T: Element>(ranks: usize, count: usize) -> Vec<Vec<T>> {
    let number = |rank: usize, index: usize| T::from_f64(((index * 7 + rank * 5) % 23) as f64 - 4.0);
    (0..ranks).map(|rank| (0..count).map(|index| number(rank, index)).collect()).collect()
}

pub(super) fn column<T: Naive>(op: ReduceKind, inputs: &[Vec<T>], index: usize) -> T {
    let finish = if op == ReduceKind::Avg { PostOp::Divide(inputs.len() as u32) } else { PostOp::Identity };
    let operand =
        |input: &Vec<T>| if op == ReduceKind::PreMulSum { input[index].scale(FACTOR) } else { input[index] };
    T::reduce(op, finish, &inputs.iter().map(operand).collect::<Vec<T>>())
}

pub(super) fn expect<T: Element>(found: &[T], expected: &[T], context: &str) {
    assert_eq!(found.len(), expected.len(), "{context}");
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(same(found, expected), "{context}, [{index}]: {found:?}, not {expected:?}");
    }
}

/// An all_reduce with each operation, one after the other, of lengths on both sides of pieces.
fn all_reduces<T: Naive>(
    device: &Device,
    protocol: Protocol,
    (ranks, parts): (usize, usize),
    program: &dyn Fn(usize) -> Program,
) {
    let mut world = World::new(device, size(ranks));
    for (op, count) in ReduceKind::ON_GPU.into_iter().zip([700, 37, 0, 1, 500, 90]) {
        let inputs = numbers::<T>(ranks, count);
        let expected: Vec<T> = (0..count).map(|index| column(op, &inputs, index)).collect();
        let job = Job { protocol, ..job::<T>(op, count, parts, (1, 1)) };
        for found in run_program(&mut world, &job, program, &inputs, count) {
            expect(&found, &expected, &format!("{op} of {count} {}, {ranks} ranks, {protocol:?}", T::DTYPE));
        }
    }
}

/// Every rank gets what all have, in order.
fn all_gathers(device: &Device, protocol: Protocol, ranks: usize) {
    let mut world = World::new(device, size(ranks));
    for count in [1, 50, 333] {
        let inputs = numbers::<u8>(ranks, count);
        let job = Job { protocol, ..job::<u8>(ReduceKind::Sum, count * ranks, 1, (ranks, ranks)) };
        let program = |rank| bruck_all_gather(ranks, rank);
        for found in run_program(&mut world, &job, &program, &inputs, count * ranks) {
            expect(&found, &inputs.concat(), &format!("all_gather of {count}, {ranks} ranks, {protocol:?}"));
        }
    }
}

fn all_to_alls(device: &Device, ranks: usize) {
    let mut world = World::new(device, size(ranks));
    for count in [1, 333] {
        let inputs = numbers::<i64>(ranks, count * ranks);
        let job = job::<i64>(ReduceKind::Sum, count * ranks, 1, (ranks, ranks));
        let program = |rank| pairwise_all_to_all(ranks, rank);
        let outputs = run_program(&mut world, &job, &program, &inputs, count * ranks);
        for (rank, found) in outputs.iter().enumerate() {
            let parts = inputs.iter().map(|input| &input[rank * count..][..count]);
            let expected: Vec<i64> = parts.flatten().copied().collect();
            expect(found, &expected, &format!("all_to_all of {count}, {ranks} ranks"));
        }
    }
}

/// Two operands of any bits. Their order is the same on both ranks, so the result is one
/// expression.
fn bit_exact<T: Naive>(device: &Device, protocol: Protocol, program: fn(usize, usize) -> Program) {
    let mut world = World::new(device, size(2));
    let mut random = Random(T::DTYPE as u64);
    let inputs: Vec<Vec<T>> = (0..2).map(|_| random.elements(301)).collect();
    for op in ReduceKind::ON_GPU {
        let expected: Vec<T> = (0..301).map(|index| column(op, &inputs, index)).collect();
        let job = Job { protocol, ..job::<T>(op, 301, 2, (1, 1)) };
        for found in run_program(&mut world, &job, &|rank| program(2, rank), &inputs, 301) {
            expect(&found, &expected, &format!("{op} of {}", T::DTYPE));
        }
    }
}

#[test]
fn programs_compute_what_they_should() {
    let Some(device) = Device::new("schedule.so", &["kernels/schedule.cu"]) else { return };
    for protocol in Protocol::ALL {
        for ranks in 2..=4 {
            let ring = |rank| ring_all_reduce(ranks, rank, ranks != 2);
            all_reduces::<i32>(&device, protocol, (ranks, ranks), &ring);
        }
        all_reduces::<f32>(&device, protocol, (3, 1), &|rank| chain_all_reduce(3, rank));
        [2, 4].into_iter().for_each(|ranks| all_gathers(&device, protocol, ranks));
        barriers(&device, protocol);
    }
    all_reduces::<f64>(&device, Protocol::Simple, (4, 1), &|rank| one_shot(4, rank));
    all_reduces::<i64>(&device, Protocol::Simple, (4, 4), &|rank| two_shot(4, rank).grouped());
    all_reduces::<u32>(&device, Protocol::Ll, (3, 3), &|rank| two_shot(3, rank));
    every_type_in_wide_lines(&device);
    [2, 3].into_iter().for_each(|ranks| all_to_alls(&device, ranks));
    bit_exact::<bf16>(&device, Protocol::Simple, two_shot);
    bit_exact::<F8E4M3>(&device, Protocol::Ll, |ranks, rank| ring_all_reduce(ranks, rank, true));
}

/// Lengths that end at every place of a line, and a start where no element of a line begins.
fn every_type_in_wide_lines(device: &Device) {
    fn ring(ranks: usize, rank: usize) -> Program {
        ring_all_reduce(ranks, rank, true)
    }
    fn all<T: Naive>(device: &Device) {
        bit_exact::<T>(device, Protocol::Ll128, ring);
        let mut world = World::new(device, size(2));
        for count in 0..=2 * LL128_DATA_BYTES / size_of::<T>() + 1 {
            let inputs = numbers::<T>(2, count);
            let expected: Vec<T> = (0..count).map(|index| column(ReduceKind::Max, &inputs, index)).collect();
            let job = Job { protocol: Protocol::Ll128, ..job::<T>(ReduceKind::Max, count, 2, (1, 1)) };
            for found in run_program(&mut world, &job, &|rank| ring(2, rank), &inputs, count) {
                expect(&found, &expected, &format!("{count} {}", T::DTYPE));
            }
        }
    }
    all::<i8>(device);
    all::<u8>(device);
    all::<i32>(device);
    all::<u32>(device);
    all::<i64>(device);
    all::<u64>(device);
    all::<f16>(device);
    all::<bf16>(device);
    all::<f32>(device);
    all::<f64>(device);
    all::<F8E4M3>(device);
    all::<F8E5M2>(device);
}

const LL128_DATA_BYTES: usize = 24;

/// No rank leaves before all have come, for as many rounds of messages without data.
fn barriers(device: &Device, protocol: Protocol) {
    let mut world = World::new(device, size(3));
    let job = Job { protocol, ..job::<u8>(ReduceKind::Sum, 0, 1, (1, 1)) };
    (0..3).for_each(|_| {
        drop(run_program::<u8>(&mut world, &job, &|rank| barrier(3, rank), &vec![vec![]; 3], 0))
    });
    assert!(world.ranks.iter().all(|rank| rank.ports.iter().map(|port| port.received).sum::<u64>() == 6));
}
