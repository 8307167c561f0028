//! Lowering of a program for a GPU: flat tables of instructions, chunks and lane programs.
//!
//! Every lane program becomes a thread block for each channel. The block executes its instructions
//! in order and waits inside them.
//!
//! Steps that need one pass over memory together become one instruction. One example is a message
//! that is received and then forwarded. Another is a window result that the output gets as well, or
//! that buffers of peers get as well.

use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{
    Chunk, ChunkRef as ScheduleChunk, LaneProgram as ScheduleLane, Program, Rank, Space, Step,
};
use unisono_cuda::device::{ChunkRef, Instr, LaneProgram, Opcode};
use unisono_transports::gpu::ProgramTables;

/// Tables under construction.
#[derive(Default)]
struct TableWriter(ProgramTables);

/// The way a step is combined with another step of its lane program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fusion {
    /// The step is not combined.
    None,
    /// The results of the step are forwarded to this rank.
    Forward(Rank),
    /// The result of the step is also written to these chunks.
    AlsoInto(Vec<ScheduleChunk>),
    /// An earlier step does the work of this one.
    Elided,
}

/// Flattens the program of `rank`.
///
/// # Errors
/// If a step has more operands than a GPU combines at once.
pub(super) fn lower(program: &Program, rank: Rank) -> Result<ProgramTables> {
    let mut writer = TableWriter::default();
    for lane_program in &program.lane_programs {
        writer.lane_program(lane_program, rank)?;
    }
    Ok(writer.0)
}

impl TableWriter {
    fn lane_program(&mut self, lane_program: &ScheduleLane, rank: Rank) -> Result<()> {
        let first_act = self.0.instrs.len() as u32;
        for (step, fused) in lane_program.steps.iter().zip(fuse(&lane_program.steps)) {
            if fused != Fusion::Elided {
                let act = self.instr(step, &fused, rank)?;
                self.0.instrs.push(act);
            }
        }
        let acts = self.0.instrs.len() as u32 - first_act;
        self.0.lane_programs.push(LaneProgram {
            lane: lane_program.lane as u32,
            first_instr: first_act,
            instr_count: acts,
        });
        Ok(())
    }

    /// Returns the instruction of one step, and appends its operands to the table of chunks.
    fn instr(&mut self, step: &Step, fused: &Fusion, rank: Rank) -> Result<Instr> {
        let here = |block: &Chunk| ScheduleChunk { rank, chunk: *block };
        let also = if let Fusion::AlsoInto(spots) = fused { &spots[..] } else { &[] };
        let first_place = self.0.chunks.len() as u32;
        let (verb, peer, operands, targets) = match step {
            Step::Send { peer, chunks: blocks } => {
                (Opcode::Send, *peer, self.push_chunks(blocks.iter().map(here)), 0)
            }
            Step::Recv { peer, into } => (Opcode::Recv, *peer, self.push_chunks(into.iter().map(here)), 0),
            Step::RecvReduce { peer, with, into, .. } => {
                let operands = self.push_chunks(with.iter().map(here));
                self.push_chunks(into.iter().map(here));
                (Opcode::RecvReduce, *peer, operands, 0)
            }
            Step::Copy { from, into } => (
                Opcode::Copy,
                rank,
                self.push_chunks([*from]),
                self.push_chunks([*into].iter().chain(also).copied()),
            ),
            Step::Reduce { from, into, .. } => {
                let operands = self.push_chunks(from.iter().copied());
                (Opcode::Reduce, rank, operands, self.push_chunks([*into].iter().chain(also).copied()))
            }
            Step::Signal => (Opcode::Signal, rank, 0, 0),
            Step::Wait { peer, .. } => (Opcode::Wait, *peer, 0, 0),
        };
        if operands.max(targets) > Instr::OPERANDS_MAX {
            let text = format!(
                "{operands} operands, {targets} results in one step; a GPU takes {}",
                Instr::OPERANDS_MAX
            );
            return Err(Error::new(ErrorKind::Unsupported(text)));
        }
        Ok(Instr {
            opcode: verb as u8,
            post_op: applies_post_op(step).into(),
            operands: operands as u16,
            targets: targets as u16,
            group_size: 0,
            peer: peer as u32,
            forward: if let Fusion::Forward(to) = fused { *to as u32 } else { Instr::NO_PEER },
            signals: if let Step::Wait { signals, .. } = step { *signals } else { 0 },
            first_chunk: first_place,
        })
    }

    /// Appends chunks and returns their number.
    fn push_chunks(&mut self, spots: impl IntoIterator<Item = ScheduleChunk>) -> usize {
        let before = self.0.chunks.len();
        self.0.chunks.extend(spots.into_iter().map(|spot| ChunkRef {
            rank: spot.rank as u32,
            space: spot.chunk.space as u32,
            index: spot.chunk.index,
        }));
        self.0.chunks.len() - before
    }
}

fn applies_post_op(step: &Step) -> bool {
    matches!(step, Step::RecvReduce { finish: true, .. } | Step::Reduce { finish: true, .. })
}

fn fuse(steps: &[Step]) -> Vec<Fusion> {
    let mut fused = vec![Fusion::None; steps.len()];
    for (index, step) in steps.iter().enumerate() {
        let Some(next) = steps.get(index + 1) else { break };
        if fused[index] != Fusion::None {
            continue;
        }
        if let Some(peer) = forward_target(step, next) {
            (fused[index], fused[index + 1]) = (Fusion::Forward(peer), Fusion::Elided);
        }
        // A signal may lie between the two steps. It is then raised a little later.
        let later = index + 1 + usize::from(*next == Step::Signal);
        if let Some(spot) = steps.get(later).and_then(|later| output_copy_target(step, later)) {
            (fused[index], fused[later]) = (Fusion::AlsoInto(vec![spot]), Fusion::Elided);
        }
        let spots: Vec<ScheduleChunk> =
            steps[index + 1..].iter().map_while(|later| peer_copy_target(step, later)).collect();
        if !spots.is_empty() {
            fused[index + 1..=index + spots.len()].fill(Fusion::Elided);
            fused[index] = Fusion::AlsoInto(spots);
        }
    }
    fused
}

/// Returns the chunk of a peer's buffer to which `later` copies the value that `step` writes.
fn peer_copy_target(step: &Step, later: &Step) -> Option<ScheduleChunk> {
    let Step::Copy { from: copied, into: also } = later else { return None };
    let (value, home) = match step {
        Step::Copy { from, into } => (from, into.rank),
        Step::Reduce { into, .. } => (into, into.rank),
        _ => return None,
    };
    (copied == value && also.rank != home && also.chunk.space == Space::Output).then_some(*also)
}

/// Returns the rank to which `next` sends the results of `step`, if it sends nothing else.
fn forward_target(step: &Step, next: &Step) -> Option<Rank> {
    match (step, next) {
        (Step::Recv { into, .. } | Step::RecvReduce { into, .. }, Step::Send { peer, chunks: blocks }) => {
            (into == blocks).then_some(*peer)
        }
        _ => None,
    }
}

/// Returns the chunk of the output to which `later` copies the result of `step` in the window.
fn output_copy_target(step: &Step, later: &Step) -> Option<ScheduleChunk> {
    let Step::Copy { from: copied, into: also } = later else { return None };
    let (result, same) = match step {
        Step::Copy { from, into } => (into, copied == from || copied == into),
        Step::Reduce { into, .. } => (into, copied == into),
        _ => return None,
    };
    (same && result.chunk.space == Space::Window && also.chunk.space == Space::Output).then_some(*also)
}

#[cfg(test)]
mod tests;
