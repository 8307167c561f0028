//! Messages in lines, over long times: flags are step numbers, which come again.

use super::program::{Program, input, output};
use super::results::{expect, job, numbers, run_program, size};
use super::world::{Job, World};
use crate::emulator::Device;
use unisono_cuda::device::Protocol;
use unisono_reducers::ReduceKind;

/// Rank 0 sends to rank 1 all that it has.
fn one_way(rank: usize) -> Program {
    let program = Program::new(rank);
    if rank == 0 { program.send(1, &[input(0)]) } else { program.recv(0, &[output(0)]) }
}

fn send(world: &mut World, protocol: Protocol, count: usize) {
    let inputs = numbers::<u32>(2, count);
    let job = Job { protocol, channels: 1, ..job::<u32>(ReduceKind::Sum, count, 1, (1, 1)) };
    let found = run_program(world, &job, &one_way, &inputs, count);
    expect(&found[1], &inputs[0], &format!("{count}"));
}

#[test]
fn flags_that_come_again_are_not_taken_for_old_ones() {
    let Some(device) = Device::new("lines.so", &["kernels/schedule.cu"]) else { return };
    // Flags of a header that are checked, and the start of those of the data, in units of 16 bytes.
    for (protocol, head, data) in [(Protocol::Ll, 5, 8), (Protocol::Ll128, 4, 4)] {
        let mut world = World::new(&device, size(2));
        // Across the last step before flags begin again.
        world.go_on_from((1 << 31) - 3);
        [40, 1, 7, 40, 33].into_iter().for_each(|count| send(&mut world, protocol, count));
        // Short messages at the end of a period leave no line of a slot as it was.
        world.go_on_from((1 << 20) - 2);
        (0..2).for_each(|_| send(&mut world, protocol, 1));
        for slot in 0..2 {
            let flags = world.line_flags(1, 0, slot);
            let mut looked_at = flags[..head].iter().chain(&flags[data..]);
            let wanted = (1 << 20) - 1 + slot as u32;
            assert!(looked_at.all(|&flag| flag == wanted), "{protocol:?}, slot {slot}: {flags:?}");
        }
    }
}
