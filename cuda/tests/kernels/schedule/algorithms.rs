//! Some collectives as programs.

use super::program::{Block, Program, input, output, scratch, window};

/// Reduce-scatter and all-gather on a ring. `fused`: received data is forwarded in the same pass.
pub(crate) fn ring_all_reduce(ranks: usize, rank: usize, fused: bool) -> Program {
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let part = |hop: usize| (rank + 2 * ranks - hop) % ranks;
    let mut program = Program::new(rank).send(next, &[input(part(0))]);
    for hop in 1..2 * ranks - 1 {
        let block = part(hop);
        program = match hop {
            hop if hop < ranks => {
                program.recv_reduce(previous, &[input(block)], &[output(block)], hop + 1 == ranks)
            }
            _ => program.recv(previous, &[output(block)]),
        };
        if hop + 1 < 2 * ranks - 1 {
            program = if fused { program.forward(next) } else { program.send(next, &[output(block)]) };
        }
    }
    program
}

/// Up a chain that folds to rank 0, and down again.
pub(crate) fn chain_all_reduce(ranks: usize, rank: usize) -> Program {
    let mut program = Program::new(rank);
    if rank + 1 < ranks {
        program = program.recv_reduce(rank + 1, &[input(0)], &[output(0)], rank == 0);
    }
    let up: Block = if rank + 1 < ranks { output(0) } else { input(0) };
    if rank > 0 {
        program = program.send(rank - 1, &[up]).recv(rank - 1, &[output(0)]);
    }
    if rank + 1 < ranks { program.send(rank + 1, &[output(0)]) } else { program }
}

/// All-gather in log steps with many blocks in a message and whole shares in scratch (Bruck).
pub(crate) fn bruck_all_gather(ranks: usize, rank: usize) -> Program {
    let mut program = Program::new(rank).copy(input(0), scratch(0));
    let mut have = 1;
    while have < ranks {
        let count = have.min(ranks - have);
        let (receiver, sender) = ((rank + ranks - have) % ranks, (rank + have) % ranks);
        let sent: Vec<Block> = (0..count).map(scratch).collect();
        let gotten: Vec<Block> = (have..have + count).map(scratch).collect();
        program = program.send(receiver, &sent).recv(sender, &gotten);
        have += count;
    }
    (0..ranks).fold(program, |program, index| program.copy(scratch(index), output((rank + index) % ranks)))
}

/// Sends in one lane program, receives in another, on the same lane.
pub(crate) fn pairwise_all_to_all(ranks: usize, rank: usize) -> Program {
    let sends = Program::new(rank);
    let sends = (1..ranks).fold(sends, |program, hop| {
        let peer = (rank + hop) % ranks;
        program.send(peer, &[input(peer)])
    });
    let receives = sends.lane_program(0).copy(input(rank), output(rank));
    (1..ranks).fold(receives, |program, hop| {
        let peer = (rank + ranks - hop) % ranks;
        program.recv(peer, &[output(peer)])
    })
}

/// Messages without data: after as many steps as the number of ranks has bits, every rank has heard
/// of every other.
pub(crate) fn barrier(ranks: usize, rank: usize) -> Program {
    let hops = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&hop| hop < ranks);
    hops.fold(Program::new(rank), |program, hop| {
        program.send((rank + hop) % ranks, &[]).recv((rank + ranks - hop) % ranks, &[])
    })
}

/// Everyone reduces all windows.
pub(crate) fn one_shot(ranks: usize, rank: usize) -> Program {
    let program = Program::new(rank).copy(input(0), window(0)).signal();
    let program = peers(ranks, rank).fold(program, |program, peer| program.wait(peer, 1));
    let operand = |sender| if sender == rank { input(0) } else { window(0) };
    let operands: Vec<(usize, Block)> = (0..ranks).map(|sender| (sender, operand(sender))).collect();
    program.reduce(&operands, &[output(0)])
}

/// Every rank reduces its part and reads the others'. The result is written to window and output in
/// one pass.
pub(crate) fn two_shot(ranks: usize, rank: usize) -> Program {
    let program = peers(ranks, rank)
        .fold(Program::new(rank), |program, peer| program.copy(input(peer), window(peer)))
        .signal();
    let program = peers(ranks, rank).fold(program, |program, peer| program.wait(peer, 1));
    let operand = |sender| if sender == rank { input(rank) } else { window(rank) };
    let operands: Vec<(usize, Block)> = (0..ranks).map(|sender| (sender, operand(sender))).collect();
    let program = program.reduce(&operands, &[window(rank), output(rank)]).signal();
    peers(ranks, rank)
        .fold(program, |program, peer| program.wait(peer, 2).get(peer, window(peer), output(peer)))
}

fn peers(ranks: usize, rank: usize) -> impl Iterator<Item = usize> {
    (0..ranks).filter(move |&peer| peer != rank)
}
