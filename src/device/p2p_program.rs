//! Programs for sends and receives.
//!
//! A group runs on a bounded number of lane programs, so the blocks that a communicator reserves do
//! not grow with the number of ranks. The *distance* of a transfer is the number of ranks from its
//! sender to its receiver, `(receiver - sender) mod ranks`, so both ends compute the same distance.
//! Each lane program moves data in one direction, and executes its transfers by ascending distance.
//!
//! Groups of several ranks, one of each, cannot deadlock if they contain the counterparts of all
//! their transfers. Suppose that some transfers never complete, and let one of the smallest
//! distance among them go from rank i to rank j. Before this transfer, the lane program of rank i
//! executes only transfers of smaller distances, which all complete, and other transfers to rank j.
//! Rank j receives the transfers from rank i in the order in which rank i sends them. So we may
//! choose the first of those that never complete. In the same way, everything that the lane program
//! of rank j executes before this transfer completes. All lane programs of a launch are resident at
//! once, so both ends reach the transfer, wait only for each other, and complete it. That is a
//! contradiction.
//!
//! The argument needs the order in each lane program. It does not need the same number of lane
//! programs on all ranks. A copy within a rank waits for nothing, so it may be anywhere.
//!
//! Messages are sent slice by slice. The last slice is shorter than a slot, and empty if necessary.
//! Ranks that expect different lengths detect the difference there.

use crate::engine::Direction;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use unisono_cuda::device::{ChunkRef, Instr, LaneProgram, MemorySpace, Opcode};
use unisono_transports::gpu::{ProgramBounds, ProgramTables};

/// One send or receive: direction, peer and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) direction: Direction,
    pub(super) peer: Rank,
    pub(super) bytes: usize,
}

/// The sizes of the program of some transfers.
#[derive(Clone, Copy)]
pub(super) struct TransferSizes {
    /// The rank that runs the program.
    pub(super) rank: Rank,
    pub(super) ranks: usize,
    /// The lane of all messages.
    pub(super) lane: usize,
    /// The most lane programs for sends, and for receives as well.
    pub(super) width: usize,
    pub(super) slice_bytes: usize,
}

/// The program of some transfers. Sends are shares of the input in their order, and receives are
/// shares of the output.
pub(super) struct TransferProgram {
    pub(super) tables: ProgramTables,
    pub(super) bounds: ProgramBounds,
    /// Slices of the longest transfer. Each share is cut into this many.
    pub(super) slices: usize,
}

/// A transfer, with the share that it reads and the share that it writes.
#[derive(Clone, Copy)]
struct Move {
    transfer: Transfer,
    from: usize,
    into: usize,
}

/// Writes the program of `transfers`.
///
/// # Errors
/// If there are too many slices to count.
pub(super) fn transfer_program(transfers: &[Transfer], sizes: TransferSizes) -> Result<TransferProgram> {
    let TransferSizes { rank, ranks, lane, width, slice_bytes } = sizes;
    let slices_of = |transfer: &Transfer| transfer.bytes / slice_bytes + 1;
    let slices = transfers.iter().map(slices_of).max().unwrap_or(1);
    let shares = |direction| transfers.iter().filter(|transfer| transfer.direction == direction).count();
    let (sends, receives) = (shares(Direction::Send), shares(Direction::Recv));
    if slices.checked_mul(transfers.len() + 1).is_none_or(|acts| acts >= u32::MAX as usize) {
        return Err(Error::new(ErrorKind::Unsupported("transfers as long as these on GPUs".to_owned())));
    }
    let mut writer = TableWriter { tables: ProgramTables::default(), lane: lane as u32, slices };
    for moves in assign_to_lanes(transfers, rank, ranks, width) {
        writer.lane_program(rank, moves.iter().map(|each| (*each, slices_of(&each.transfer))));
    }
    let bounds = ProgramBounds {
        rank,
        ranks,
        input: sends * slices,
        output: receives * slices,
        scratch: 0,
        window: 0,
        peer_chunks: [0, 0],
        uses_window: false,
    };
    Ok(TransferProgram { tables: writer.tables, bounds, slices })
}

/// Divides the transfers among lane programs. In each direction, the first `width` peers in the
/// order of distances get a lane program each. Further peers are assigned to these lane programs in
/// turn.
fn assign_to_lanes(transfers: &[Transfer], rank: Rank, ranks: usize, width: usize) -> Vec<Vec<Move>> {
    let (mut lanes, mut own_moves) = (Vec::<Vec<Move>>::new(), [Vec::new(), Vec::new()]);
    for (direction, moves) in [Direction::Send, Direction::Recv].into_iter().zip(&mut own_moves) {
        let mut by_peer = vec![Vec::new(); ranks];
        let directed = transfers.iter().filter(|transfer| transfer.direction == direction);
        for (share, &transfer) in directed.enumerate() {
            by_peer[transfer.peer].push(Move { transfer, from: share, into: share });
        }
        *moves = std::mem::take(&mut by_peer[rank]);
        let first = lanes.len();
        // The order by distance is the one that both ends have, and without it groups could
        // deadlock.
        let peers = (1..ranks).map(|distance| peer_at(direction, distance, rank, ranks));
        let busy = peers.filter(|&peer| !by_peer[peer].is_empty());
        for (index, peer) in busy.enumerate() {
            match lanes.get_mut(first + index % width) {
                Some(lane) => lane.extend_from_slice(&by_peer[peer]),
                None => lanes.push(by_peer[peer].clone()),
            }
        }
    }
    let [sends, receives] = own_moves;
    let copies = sends.into_iter().zip(receives).map(|(send, receive)| Move { into: receive.into, ..send });
    let copies: Vec<Move> = copies.collect();
    let bytes = |lane: &&mut Vec<Move>| lane.iter().map(|each| each.transfer.bytes).sum::<usize>();
    // Copies wait for nothing, so they may follow any lane program if there is no room for another.
    match lanes.len() < 2 * width {
        true => lanes.push(copies),
        false => lanes.iter_mut().min_by_key(bytes).into_iter().for_each(|lane| lane.extend(&copies)),
    }
    lanes
}

/// Returns the peer of a transfer of this distance: the receiver of a send, or the sender of a
/// receive.
fn peer_at(direction: Direction, distance: usize, rank: Rank, ranks: usize) -> Rank {
    match direction {
        Direction::Send => (rank + distance) % ranks,
        Direction::Recv => (rank + ranks - distance) % ranks,
    }
}

struct TableWriter {
    tables: ProgramTables,
    lane: u32,
    slices: usize,
}

impl TableWriter {
    /// Appends a lane program that executes moves in order, each with its number of slices.
    fn lane_program(&mut self, rank: Rank, moves: impl Iterator<Item = (Move, usize)>) {
        let first_act = self.tables.instrs.len() as u32;
        for (Move { transfer, from, into }, slices) in moves {
            for slice in 0..slices {
                self.instr(rank, &transfer, from * self.slices + slice, into * self.slices + slice);
            }
        }
        let acts = self.tables.instrs.len() as u32 - first_act;
        if acts > 0 {
            self.tables.lane_programs.push(LaneProgram {
                lane: self.lane,
                first_instr: first_act,
                instr_count: acts,
            });
        }
    }

    fn instr(&mut self, rank: Rank, transfer: &Transfer, source_index: usize, target_index: usize) {
        let place = |space: MemorySpace, index: usize| ChunkRef {
            rank: rank as u32,
            space: space as u32,
            index: index as u32,
        };
        let (input, output) =
            (place(MemorySpace::Input, source_index), place(MemorySpace::Output, target_index));
        let first_place = self.tables.chunks.len() as u32;
        let (verb, targets) = match transfer.direction {
            _ if transfer.peer == rank => (Opcode::Copy, 1),
            Direction::Send => (Opcode::Send, 0),
            Direction::Recv => (Opcode::Recv, 0),
        };
        match verb {
            Opcode::Copy => self.tables.chunks.extend([input, output]),
            Opcode::Send => self.tables.chunks.push(input),
            _ => self.tables.chunks.push(output),
        }
        self.tables.instrs.push(Instr {
            opcode: verb as u8,
            post_op: 0,
            operands: 1,
            targets,
            group_size: 0,
            peer: transfer.peer as u32,
            forward: Instr::NO_PEER,
            signals: 0,
            first_chunk: first_place,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Recv, Send};
    use std::collections::HashMap;
    use unisono_transports::gpu::Program;

    fn transfer(direction: Direction, peer: Rank, bytes: usize) -> Transfer {
        Transfer { direction, peer, bytes }
    }

    #[test]
    fn transfer_program_orders_peers_by_distance() {
        let transfers = [
            transfer(Send, 0, 100),
            transfer(Recv, 0, 300),
            transfer(Send, 2, 0),
            transfer(Send, 1, 64),
            transfer(Recv, 1, 64),
            transfer(Send, 0, 65),
        ];
        let sizes = TransferSizes { rank: 1, ranks: 3, lane: 4, width: 2, slice_bytes: 64 };
        let program = |width| transfer_program(&transfers, TransferSizes { width, ..sizes }).unwrap();
        let TransferProgram { tables, bounds, slices } = program(2);
        assert_eq!(slices, 5, "of the longest");
        let acts = |tables: &ProgramTables| -> Vec<u32> {
            tables.lane_programs.iter().map(|lane_program| lane_program.instr_count).collect()
        };
        assert_eq!(
            acts(&tables),
            [1, 4, 5, 2],
            "sends to 2 (an empty message), to 0, receives from 0, and what stays here"
        );
        let to_zero: Vec<u32> = tables.chunks[1..5].iter().map(|place| place.index).collect();
        assert_eq!(to_zero, [0, 1, 15, 16], "slices of the first share and of the fourth");
        assert!(tables.lane_programs.iter().all(|lane_program| lane_program.lane == 4));
        Program::new(tables, bounds).unwrap();
        assert_eq!(acts(&program(1).tables), [7, 5], "with one each, the copy follows the shorter sends");
    }

    /// Runs the programs of all ranks with FIFOs of one message. Returns the messages that were
    /// received, or `None` if the lane programs wait for each other.
    fn simulate(programs: &[ProgramTables]) -> Option<usize> {
        let mut in_flight = HashMap::<(Rank, Rank), usize>::new();
        let mut next: Vec<Vec<u32>> =
            programs.iter().map(|tables| vec![0; tables.lane_programs.len()]).collect();
        let (mut received, mut moved) = (0, true);
        while std::mem::take(&mut moved) {
            for (rank, tables) in programs.iter().enumerate() {
                for (lane, next) in tables.lane_programs.iter().zip(&mut next[rank]) {
                    if *next == lane.instr_count {
                        continue;
                    }
                    let instr = &tables.instrs[(lane.first_instr + *next) as usize];
                    let peer = instr.peer as usize;
                    let ready = if instr.opcode == Opcode::Send as u8 {
                        let fifo = in_flight.entry((rank, peer)).or_default();
                        *fifo == 0 && std::mem::replace(fifo, 1) == 0
                    } else if instr.opcode == Opcode::Recv as u8 {
                        let fifo = in_flight.entry((peer, rank)).or_default();
                        *fifo == 1 && std::mem::take(fifo) == 1 && {
                            received += 1;
                            true
                        }
                    } else {
                        true
                    };
                    *next += u32::from(ready);
                    moved |= ready;
                }
            }
        }
        let ended = |(rank, tables): (usize, &ProgramTables)| {
            tables.lane_programs.iter().zip(&next[rank]).all(|(lane, next)| *next == lane.instr_count)
        };
        programs.iter().enumerate().all(ended).then_some(received)
    }

    /// Transfers of each rank in a group of every rank with every rank, each in another order.
    fn full_exchange(rank: Rank, ranks: usize) -> Vec<Transfer> {
        let order = |turn: usize| (turn * 7 + rank * 3) % ranks;
        let pairs = (0..ranks).map(order);
        pairs.flat_map(|peer| [transfer(Recv, peer, 100), transfer(Send, peer, 100)]).collect()
    }

    #[test]
    fn groups_of_40_ranks_end_on_bounded_lane_programs() {
        for width in [1, 2, 3, 8, 64] {
            let program = |rank| {
                let sizes = TransferSizes { rank, ranks: 40, lane: 0, width, slice_bytes: 64 };
                transfer_program(&full_exchange(rank, 40), sizes)
            };
            let programs: Vec<_> = (0..40).map(|rank| program(rank).unwrap().tables).collect();
            let lanes = programs.iter().map(|tables| tables.lane_programs.len());
            assert_eq!(lanes.max(), Some(79.min(2 * width)));
            assert_eq!(simulate(&programs), Some(40 * 39 * 2), "two slices of each transfer, {width}");
        }
    }

    /// Ranks 0 and 3 send to ranks 1 and 2.
    #[test]
    fn lane_programs_out_of_order_wait_for_each_other() {
        let sends = [transfer(Send, 1, 100), transfer(Send, 2, 100)];
        let receives = [transfer(Recv, 0, 100), transfer(Recv, 3, 100)];
        let program = |rank: Rank| {
            let transfers = if rank == 0 || rank == 3 { &sends } else { &receives };
            let sizes = TransferSizes { rank, ranks: 4, lane: 0, width: 1, slice_bytes: 64 };
            transfer_program(transfers, sizes).unwrap().tables
        };
        let mut programs = [0, 1, 2, 3].map(program);
        assert_eq!(simulate(&programs), Some(8));
        [1, 3].into_iter().for_each(|rank| programs[rank].instrs.reverse());
        assert_eq!(simulate(&programs), None, "one sender and one receiver begin with the other end");
    }
}
