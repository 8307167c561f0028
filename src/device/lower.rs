//! Tables of a program for a GPU: its instructions, chunks and lane programs, flat.
//!
//! Every lane program becomes a thread block for each channel. The block executes its instructions
//! in order and waits inside them. A message that is received and then forwarded is one
//! instruction, so that its data passes through registers once.

use crate::error::{Error, ErrorKind, Result};
use crate::schedule::lower::{self, Combine};
use crate::schedule::{Chunk, ChunkRef as ScheduleChunk, Program, Rank};
use unisono_cuda::device::{ChunkRef, Instr, LaneProgram, Opcode};
use unisono_transports::gpu::ProgramTables;

/// Tables under construction.
struct TableWriter {
    tables: ProgramTables,
    rank: Rank,
}

/// Flattens the program of `rank`.
///
/// # Errors
/// If an instruction has more operands than a GPU combines at once.
pub(super) fn lower(program: Program, rank: Rank) -> Result<ProgramTables> {
    let mut writer = TableWriter { tables: ProgramTables::default(), rank };
    for lane in lower::lower(program, rank, true) {
        writer.lane(&lane)?;
    }
    Ok(writer.tables)
}

impl TableWriter {
    fn lane(&mut self, lane: &lower::LaneInstrs) -> Result<()> {
        let first_instr = self.tables.instrs.len() as u32;
        let mut remaining = &lane.instrs[..];
        while let Some((instr, later)) = remaining.split_first() {
            // A message that goes on is read once and written to both places:
            // docs/decisions/0010-schedules-on-gpus.md.
            let forward = later.first().and_then(|next| forward_target(instr, next));
            let written =
                Instr { forward: forward.map_or(Instr::NO_PEER, |peer| peer as u32), ..self.instr(instr)? };
            self.tables.instrs.push(written);
            remaining = &later[usize::from(forward.is_some())..];
        }
        let instr_count = self.tables.instrs.len() as u32 - first_instr;
        self.tables.lane_programs.push(LaneProgram { lane: lane.lane as u32, first_instr, instr_count });
        Ok(())
    }

    /// Returns one instruction, and appends its operands to the table of chunks.
    fn instr(&mut self, instr: &lower::Instr) -> Result<Instr> {
        let first_chunk = self.tables.chunks.len() as u32;
        let instr = Instr { first_chunk, ..self.with_chunks(instr) };
        let (operands, targets) = (instr.operands, instr.targets);
        if usize::from(operands.max(targets)) > Instr::OPERANDS_MAX {
            let text = format!(
                "{operands} operands, {targets} results in one step; a GPU takes {}",
                Instr::OPERANDS_MAX
            );
            return Err(Error::new(ErrorKind::Unsupported(text)));
        }
        Ok(instr)
    }

    fn with_chunks(&mut self, instr: &lower::Instr) -> Instr {
        match instr {
            lower::Instr::Send { peer, chunks } => {
                Instr { operands: self.push_own(chunks), ..new_instr(Opcode::Send, *peer) }
            }
            lower::Instr::Recv { peer, into } => {
                Instr { operands: self.push_own(into), ..new_instr(Opcode::Recv, *peer) }
            }
            lower::Instr::RecvReduce { peer, with, into, finish } => {
                let operands = self.push_own(with);
                self.push_own(into);
                Instr { operands, post_op: (*finish).into(), ..new_instr(Opcode::RecvReduce, *peer) }
            }
            lower::Instr::Transfer(transfer) => {
                let (opcode, finish) = match transfer.combine {
                    Combine::Copy => (Opcode::Copy, false),
                    Combine::Reduce { finish } => (Opcode::Reduce, finish),
                };
                let operands = self.push_chunks(transfer.sources.iter().copied());
                let targets = self.push_chunks(transfer.targets.iter().copied());
                Instr { operands, targets, post_op: finish.into(), ..new_instr(opcode, self.rank) }
            }
            lower::Instr::Signal => new_instr(Opcode::Signal, self.rank),
            lower::Instr::Wait { peer, signals } => {
                Instr { signals: *signals, ..new_instr(Opcode::Wait, *peer) }
            }
        }
    }

    /// Appends chunks of this rank and returns their number.
    fn push_own(&mut self, chunks: &[Chunk]) -> u16 {
        let rank = self.rank;
        self.push_chunks(chunks.iter().map(|&chunk| ScheduleChunk { rank, chunk }))
    }

    /// Appends chunks and returns their number.
    fn push_chunks(&mut self, places: impl ExactSizeIterator<Item = ScheduleChunk>) -> u16 {
        let count = u16::try_from(places.len()).unwrap_or(u16::MAX);
        self.tables.chunks.extend(places.map(|place| ChunkRef {
            rank: place.rank as u32,
            space: place.chunk.space as u32,
            index: place.chunk.index,
        }));
        count
    }
}

/// Returns an instruction without chunks.
fn new_instr(opcode: Opcode, peer: Rank) -> Instr {
    Instr {
        opcode: opcode as u8,
        post_op: 0,
        operands: 0,
        targets: 0,
        group_size: 0,
        peer: peer as u32,
        forward: Instr::NO_PEER,
        signals: 0,
        first_chunk: 0,
    }
}

/// Returns the rank to which `next` sends the results of `instr`, if it sends nothing else.
fn forward_target(instr: &lower::Instr, next: &lower::Instr) -> Option<Rank> {
    use lower::Instr::{Recv, RecvReduce, Send};
    match (instr, next) {
        (Recv { into, .. } | RecvReduce { into, .. }, Send { peer, chunks }) => {
            (into == chunks).then_some(*peer)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
