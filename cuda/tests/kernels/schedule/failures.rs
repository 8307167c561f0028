//! Failures end within the deadline, and the report says where.

use super::algorithms::*;
use super::program::{Program, input, output};
use super::results::{job, size};
use super::world::{Job, Memory, Part, World};
use crate::emulator::Device;
use std::time::{Duration, Instant};
use unisono_cuda::device::{WaitReport, WaitState};
use unisono_reducers::ReduceKind;

const COUNT: usize = 100;

fn parts<const N: usize>(parts: [Option<(Job, Program)>; N]) -> [Option<Part>; N] {
    parts.map(|part| part.map(|(job, program)| Part { job, program }))
}

fn run<const N: usize>(world: &mut World, programs: [Option<(Job, Program)>; N]) -> [WaitReport; N] {
    let device = world.device;
    let memory = [(); N].map(|()| Memory::zeroed(device, COUNT * 4));
    let outputs = [(); N].map(|()| Memory::zeroed(device, COUNT * 4));
    world.run(&parts(programs), &memory, &outputs);
    std::array::from_fn(|rank| world.ranks[rank].status.clone())
}

fn sum(parts: usize) -> Job {
    job::<i32>(ReduceKind::Sum, COUNT, parts, (1, 1))
}

#[test]
fn schedule_failures_are_reported() {
    let Some(device) = Device::new("wrong.so", &["kernels/schedule.cu"]) else { return };
    missing_peer_times_out(&device);
    host_abort_ends_launch(&device);
    counts_differ(&device);
    counts_differ_in_windows(&device);
    lengths_differ(&device);
}

fn missing_peer_times_out(device: &Device) {
    let mut world = World::new(device, size(3));
    world.limit = Duration::from_millis(50);
    let ring = |rank| Some((sum(3), ring_all_reduce(3, rank, false)));
    let [first, second, _] = run(&mut world, [ring(0), ring(1), None]);
    assert_eq!((first.state(), second.state()), (Some(WaitState::TimedOut), Some(WaitState::TimedOut)));
    let who = |status: &WaitReport| (status.rank, status.peer, status.step, status.instr, status.wanted);
    assert_eq!(who(&first), (0, 2, 0, 1, 1), "its first message, the second act");
    assert_eq!((second.rank, second.peer), (1, 0), "rank 0 sends no more");
    assert_eq!((first.local_tag[1], first.local_tag[2]), (ReduceKind::Sum as u64, COUNT as u64 * 4));
    later_launches_end_at_once(&mut world);
}

/// Also without a wait that would find out.
fn later_launches_end_at_once(world: &mut World) {
    world.limit = Duration::from_secs(3600);
    let (earlier_ports, start) = (world.ranks[0].ports.clone(), Instant::now());
    let alone = Program::new(0).send(1, &[input(0)]);
    let [again, ..] = run(world, [Some((sum(1), alone)), None, None]);
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!((again.state(), again.instr), (Some(WaitState::TimedOut), 1), "the first reason stays");
    let sent = |ports: &[unisono_cuda::device::Port]| ports.iter().map(|port| port.sent).sum::<u64>();
    assert_eq!(sent(&world.ranks[0].ports), sent(&earlier_ports));
}

fn host_abort_ends_launch(device: &Device) {
    let mut world = World::new(device, size(2));
    world.limit = Duration::from_secs(3600);
    world.ranks[0].abort = 1;
    let [status, _] = run(&mut world, [Some((sum(1), one_shot(2, 0))), None]);
    assert_eq!((status.state(), status.peer, status.instr), (Some(WaitState::Aborted), 1, 2));
}

/// Both find out, at their first contact.
fn refused(world: &mut World, program: fn(usize, usize) -> Program) {
    let other = Job { shares: (COUNT * 2, COUNT * 2), ..sum(2) };
    let found = run(world, [Some((sum(2), program(2, 0))), Some((other, program(2, 1)))]);
    for (rank, status) in found.iter().enumerate() {
        assert_eq!(status.state(), Some(WaitState::Mismatch), "{status:?}");
        let counts = [COUNT as u64 * 4, COUNT as u64 * 2];
        assert_eq!((status.local_tag[2], status.remote_tag[2]), (counts[rank], counts[1 - rank]));
    }
}

fn counts_differ(device: &Device) {
    refused(&mut World::new(device, size(2)), |ranks, rank| ring_all_reduce(ranks, rank, false));
}

fn counts_differ_in_windows(device: &Device) {
    refused(&mut World::new(device, size(2)), one_shot);
}

fn lengths_differ(device: &Device) {
    let mut world = World::new(device, size(2));
    let sender = Program::new(0).send(1, &[input(0)]);
    let receiver = Program::new(1).recv(0, &[output(0), output(1)]);
    let [_, status] = run(&mut world, [Some((sum(2), sender)), Some((sum(2), receiver))]);
    assert_eq!(status.state(), Some(WaitState::LengthMismatch), "{status:?}");
    // Either channel may be first to find it: one has whole packs, the other the rest.
    let told = (status.wanted, status.seen);
    assert!([(COUNT as u64 * 4 - 16, 192), (16, 8)].contains(&told) && status.peer == 0, "{status:?}");
}
