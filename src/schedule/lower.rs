//! Lowering, which translates the steps of a program into instructions that every executor runs.
//!
//! Copies and reductions become a [`Transfer`], which is one pass over memory with any number of
//! sources and targets. Steps that access the same memory share a pass.

use crate::schedule::{Algorithm, Chunk, ChunkRef, LaneProgram, Program, Rank, Space, Step};

/// One instruction of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Instr {
    /// As [`Step::Send`].
    Send { peer: Rank, chunks: Vec<Chunk> },
    /// As [`Step::Recv`].
    Recv { peer: Rank, into: Vec<Chunk> },
    /// As [`Step::RecvReduce`].
    RecvReduce { peer: Rank, with: Vec<Chunk>, into: Vec<Chunk>, finish: bool },
    /// Copies or reduces, in one pass over memory.
    Transfer(Transfer),
    /// As [`Step::Signal`].
    Signal,
    /// As [`Step::Wait`].
    Wait { peer: Rank, signals: u32 },
}

/// A pass over memory: reads the sources and writes the result to every target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// The operands, at least one.
    pub(crate) sources: Vec<ChunkRef>,
    /// The chunks of the result. The first one is the target of the step.
    pub(crate) targets: Vec<ChunkRef>,
    pub(crate) combine: Combine,
    /// Number of chunks that move between this rank and others.
    pub(crate) remote_chunks: usize,
}

/// The computation of a [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    /// The result is the only source.
    Copy,
    /// The result is the reduction of the sources. With `finish`, it is complete.
    Reduce { finish: bool },
}

/// The instructions of one lane program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneInstrs {
    pub(crate) lane: usize,
    pub(crate) instrs: Vec<Instr>,
}

/// Lowers the program of `rank`. If `fuse` is true, steps that access the same memory share a pass.
pub(crate) fn lower(program: Program, rank: Rank, fuse: bool) -> Vec<LaneInstrs> {
    let lower_lane =
        |LaneProgram { lane, steps }| LaneInstrs { lane, instrs: lower_steps(steps, rank, fuse) };
    program.lane_programs.into_iter().map(lower_lane).collect()
}

fn lower_steps(steps: Vec<Step>, rank: Rank, fuse: bool) -> Vec<Instr> {
    let mut instrs: Vec<Instr> = Vec::with_capacity(steps.len());
    for step in steps {
        let instr = lower_step(step, rank);
        let fused = fuse && extend_last_transfer(&mut instrs, &instr);
        if !fused {
            instrs.push(instr);
        }
    }
    instrs
}

fn lower_step(step: Step, rank: Rank) -> Instr {
    match step {
        Step::Send { peer, chunks } => Instr::Send { peer, chunks },
        Step::Recv { peer, into } => Instr::Recv { peer, into },
        Step::RecvReduce { peer, with, into, finish } => Instr::RecvReduce { peer, with, into, finish },
        Step::Copy { from, into } => Instr::Transfer(Transfer {
            remote_chunks: usize::from(from.rank != rank || into.rank != rank),
            sources: vec![from],
            targets: vec![into],
            combine: Combine::Copy,
        }),
        Step::Reduce { from, into, finish } => {
            // If the first operand is also the target, it is moved only once.
            let elsewhere = Some(&into).filter(|&target| from.first() != Some(target));
            let remote_chunks = from.iter().chain(elsewhere).filter(|place| place.rank != rank).count();
            let combine = Combine::Reduce { finish };
            Instr::Transfer(Transfer { remote_chunks, sources: from, targets: vec![into], combine })
        }
        Step::Signal => Instr::Signal,
        Step::Wait { peer, signals } => Instr::Wait { peer, signals },
    }
}

/// Adds the target of `copy` to the last transfer, if this transfer has the value. Returns true if
/// it did so.
///
/// If a signal is between the two instructions, it is sent a little later.
fn extend_last_transfer(instrs: &mut [Instr], copy: &Instr) -> bool {
    let Instr::Transfer(Transfer { sources, targets, combine: Combine::Copy, remote_chunks }) = copy else {
        return false;
    };
    let last = instrs.iter_mut().rev().find(|instr| **instr != Instr::Signal);
    let Some(Instr::Transfer(earlier)) = last else {
        return false;
    };
    let extends = earlier.yields(&sources[0]) && earlier.may_also_write(&targets[0]);
    if extends {
        earlier.targets.extend_from_slice(targets);
        earlier.remote_chunks += remote_chunks;
    }
    extends
}

impl Transfer {
    /// Returns true if `value` is the result of this transfer.
    fn yields(&self, value: &ChunkRef) -> bool {
        self.targets[0] == *value || self.combine == Combine::Copy && self.sources[0] == *value
    }

    /// Returns true if the pass can also write `target`. It can write an output together with a
    /// window, and a peer's output together with its own.
    fn may_also_write(&self, target: &ChunkRef) -> bool {
        let first = self.targets[0];
        let fits = match first.chunk.space {
            Space::Window => {
                self.sources.len() <= OPERANDS_MAX
                    && self.targets.len() == 1
                    && (self.combine != Combine::Copy || self.sources[0].chunk.space != Space::Window)
            }
            Space::Output => target.rank != first.rank,
            Space::Input | Space::Scratch => false,
        };
        target.chunk.space == Space::Output && fits
    }

    /// Returns true if the transfer reads the window of a rank other than `rank`.
    pub(crate) fn reads_peer_window(&self, rank: Rank) -> bool {
        self.sources.iter().any(|place| place.chunk.space == Space::Window && place.rank != rank)
    }
}

impl Instr {
    /// Returns the size of the lists in bytes.
    pub(crate) fn list_bytes(&self) -> usize {
        match self {
            Instr::Send { chunks, .. } => size_of_val(&chunks[..]),
            Instr::Recv { into, .. } => size_of_val(&into[..]),
            Instr::RecvReduce { with, into, .. } => size_of_val(&with[..]) + size_of_val(&into[..]),
            Instr::Transfer(transfer) => {
                size_of_val(&transfer.sources[..]) + size_of_val(&transfer.targets[..])
            }
            Instr::Signal | Instr::Wait { .. } => 0,
        }
    }
}

/// Largest number of operands that one pass over memory combines on the host.
pub(crate) const OPERANDS_MAX: usize = 64;

/// Returns true if every sum of `algorithm` is complete before it is stored. More operands than
/// [`OPERANDS_MAX`] are combined in several passes over memory.
pub(crate) fn stores_complete_sums(algorithm: &Algorithm, ranks: usize) -> bool {
    algorithm.rounds_once(ranks) && ranks <= OPERANDS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Collective, GroupSpec, ProgramBuilder, chunk_at, find, input, output, window};

    fn instrs(collective: Collective, name: &str, fuse: bool) -> Vec<Instr> {
        let row = find(collective, name).unwrap();
        let program = (row.build)(&GroupSpec::new(3), 1);
        lower(program, 1, fuse).remove(0).instrs
    }

    fn targets(instrs: &[Instr]) -> Vec<Vec<ChunkRef>> {
        let targets_of = |instr: &Instr| match instr {
            Instr::Transfer(transfer) => Some(transfer.targets.clone()),
            _ => None,
        };
        instrs.iter().filter_map(targets_of).collect()
    }

    #[test]
    fn twoshot_result_is_written_to_window_and_output_at_once() {
        let instrs = instrs(Collective::AllReduce, "twoshot", true);
        let fused: Vec<_> = targets(&instrs).into_iter().filter(|targets| targets.len() > 1).collect();
        assert_eq!(fused.len(), 1);
        assert_eq!((fused[0][0].chunk.space, fused[0][1]), (Space::Window, chunk_at(1, output(1))));
        let reduce = instrs.iter().position(
            |instr| matches!(instr, Instr::Transfer(transfer) if transfer.combine == Combine::Reduce { finish: true }),
        );
        assert_eq!(instrs[reduce.unwrap() + 1], Instr::Signal);
    }

    #[test]
    fn all_gather_input_is_read_once() {
        let fused = instrs(Collective::AllGather, "window_direct", true);
        let window_and_output = vec![chunk_at(1, window(0)), chunk_at(1, output(1))];
        assert_eq!(targets(&fused)[0], window_and_output);
        assert!(targets(&fused)[1..].iter().all(|targets| targets.len() == 1));
        let apart = instrs(Collective::AllGather, "window_direct", false);
        assert!(targets(&apart).iter().all(|targets| targets.len() == 1));
        assert_eq!(apart.len(), fused.len() + 1);
    }

    #[test]
    fn zero_copy_result_is_written_to_all_ranks_at_once() {
        let written = targets(&instrs(Collective::AllReduce, "zero_copy", true));
        assert_eq!(written, [[1, 2, 0].map(|rank| chunk_at(rank, output(1)))]);
        let Instr::Transfer(transfer) = &instrs(Collective::AllReduce, "zero_copy", true)[3] else {
            panic!("the transfer follows a signal and two waits");
        };
        assert_eq!(transfer.remote_chunks, 4, "two are read, two are written");
    }

    #[test]
    fn reduction_of_several_passes_keeps_one_target() {
        let fused = |operands: u32| {
            let mut builder = ProgramBuilder::new(0);
            let operands: Vec<ChunkRef> =
                (0..operands).map(|index| chunk_at(0, input(index as usize))).collect();
            builder.step(Step::Reduce { from: operands, into: chunk_at(1, window(0)), finish: true });
            builder.get(1, window(0), output(0));
            lower(builder.finish(0, 1), 0, true).remove(0).instrs.len() == 1
        };
        assert!(fused(OPERANDS_MAX as u32) && !fused(OPERANDS_MAX as u32 + 1));
    }

    #[test]
    fn steps_with_others_between_stay_apart() {
        let mut builder = ProgramBuilder::new(0);
        let own_chunk = |chunk| chunk_at(0, chunk);
        builder.reduce(vec![own_chunk(input(0))], window(0), true).wait(1, 1).copy(window(0), output(0));
        builder.reduce(vec![own_chunk(input(0))], window(1), true).copy(window(0), output(1));
        let instrs = lower(builder.finish(0, 2), 0, true).remove(0).instrs;
        assert_eq!(instrs.len(), 5);
    }
}
