//! Programs for sends and receives.
//!
//! Each peer and direction has a lane program of its own, so no order among the transfers can
//! deadlock. Messages are sent slice by slice. The last slice is shorter than a slot, and empty if
//! necessary. Ranks that expect different lengths detect the difference there.

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

/// The program of some transfers. Sends are shares of the input in their order, and receives are
/// shares of the output.
pub(super) struct TransferProgram {
    pub(super) tables: ProgramTables,
    pub(super) bounds: ProgramBounds,
    /// Slices of the longest transfer. Each share is cut into this many.
    pub(super) slices: usize,
}

/// Writes the program of `transfers` for `rank` on `lane`, in slices of `slice_bytes`.
///
/// # Errors
/// If there are too many slices to count.
pub(super) fn transfer_program(
    transfers: &[Transfer],
    (rank, ranks): (Rank, usize),
    lane: usize,
    slice_bytes: usize,
) -> Result<TransferProgram> {
    let slices_of = |transfer: &Transfer| transfer.bytes / slice_bytes + 1;
    let slices = transfers.iter().map(slices_of).max().unwrap_or(1);
    let shares = |direction| transfers.iter().filter(|transfer| transfer.direction == direction).count();
    let (sends, receives) = (shares(Direction::Send), shares(Direction::Recv));
    if slices.checked_mul(transfers.len() + 1).is_none_or(|acts| acts >= u32::MAX as usize) {
        return Err(Error::new(ErrorKind::Unsupported("transfers as long as these on GPUs".to_owned())));
    }
    let mut writer = TableWriter { tables: ProgramTables::default(), lane: lane as u32, slices };
    for direction in [Direction::Send, Direction::Recv] {
        let all = || transfers.iter().filter(|transfer| transfer.direction == direction).enumerate();
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            let of_peer = all().filter(|(_, transfer)| transfer.peer == peer);
            writer.lane_program(
                rank,
                of_peer.map(|(share, transfer)| (share, share, *transfer, slices_of(transfer))),
            );
        }
    }
    let own = |direction| {
        let all = transfers.iter().filter(move |transfer| transfer.direction == direction).enumerate();
        all.filter(|(_, transfer)| transfer.peer == rank)
    };
    let own = own(Direction::Send).zip(own(Direction::Recv));
    writer.lane_program(rank, own.map(|((from, send), (into, _))| (from, into, *send, slices_of(send))));
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

struct TableWriter {
    tables: ProgramTables,
    lane: u32,
    slices: usize,
}

impl TableWriter {
    /// Appends a lane program that executes transfers in order: (share read, share written,
    /// transfer, its slices).
    fn lane_program(&mut self, rank: Rank, transfers: impl Iterator<Item = (usize, usize, Transfer, usize)>) {
        let first_act = self.tables.instrs.len() as u32;
        for (from, into, transfer, slices) in transfers {
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

    fn instr(&mut self, rank: Rank, transfer: &Transfer, from: usize, into: usize) {
        let place = |space: MemorySpace, index: usize| ChunkRef {
            rank: rank as u32,
            space: space as u32,
            index: index as u32,
        };
        let (input, output) = (place(MemorySpace::Input, from), place(MemorySpace::Output, into));
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
    use unisono_transports::gpu::Program;

    fn transfer(direction: Direction, peer: Rank, bytes: usize) -> Transfer {
        Transfer { direction, peer, bytes }
    }

    #[test]
    fn transfer_program_has_a_lane_per_peer_and_direction() {
        use Direction::{Recv, Send};
        let all = [
            transfer(Send, 0, 100),
            transfer(Recv, 0, 300),
            transfer(Send, 2, 0),
            transfer(Send, 1, 64),
            transfer(Recv, 1, 64),
            transfer(Send, 0, 65),
        ];
        let TransferProgram { tables, bounds, slices } = transfer_program(&all, (1, 3), 4, 64).unwrap();
        assert_eq!(slices, 5, "of the longest");
        let acts: Vec<u32> =
            tables.lane_programs.iter().map(|lane_program| lane_program.instr_count).collect();
        assert_eq!(
            acts,
            [4, 1, 5, 2],
            "sends to 0, to 2 (an empty message), receives from 0, and what stays here"
        );
        let to_zero: Vec<u32> = tables.chunks[..4].iter().map(|place| place.index).collect();
        assert_eq!(to_zero, [0, 1, 15, 16], "slices of the first share and of the fourth");
        assert!(tables.lane_programs.iter().all(|lane_program| lane_program.lane == 4));
        Program::new(tables, bounds).unwrap();
    }
}
