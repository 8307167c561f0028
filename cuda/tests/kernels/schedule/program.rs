//! Programs written by hand, as tables for the device.

use unisono_cuda::device::{ChunkRef, Instr, LaneProgram, MemorySpace, Opcode};

/// A block of this rank: its memory space and its index.
pub(crate) type Block = (MemorySpace, u32);

/// One rank's program.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) acts: Vec<Instr>,
    pub(crate) places: Vec<ChunkRef>,
    pub(crate) lane_programs: Vec<LaneProgram>,
    pub(crate) scratch: u32,
    pub(crate) uses_window: bool,
    rank: u32,
}

pub(crate) fn input(index: usize) -> Block {
    (MemorySpace::Input, index as u32)
}

pub(crate) fn output(index: usize) -> Block {
    (MemorySpace::Output, index as u32)
}

pub(crate) fn scratch(index: usize) -> Block {
    (MemorySpace::Scratch, index as u32)
}

pub(crate) fn window(index: usize) -> Block {
    (MemorySpace::Window, index as u32)
}

impl Program {
    /// An empty program with one lane program on lane 0.
    pub(crate) fn new(rank: usize) -> Self {
        Self { rank: rank as u32, ..Self::default() }.lane_program(0)
    }

    /// Begins a new lane program for the instructions that follow.
    pub(crate) fn lane_program(mut self, lane: u32) -> Self {
        self.lane_programs.push(LaneProgram { lane, first_instr: self.acts.len() as u32, instr_count: 0 });
        self
    }

    fn chunk(&mut self, rank: u32, (space, index): Block) {
        self.scratch = if space == MemorySpace::Scratch { self.scratch.max(index + 1) } else { self.scratch };
        self.uses_window |= space == MemorySpace::Window;
        self.places.push(ChunkRef { rank, space: space as u32, index });
    }

    /// Adds an act without places, which the caller adds.
    fn instr(&mut self, verb: Opcode, peer: usize, operands: usize) -> &mut Instr {
        self.lane_programs.last_mut().expect("a program has a lane program").instr_count += 1;
        self.acts.push(Instr {
            opcode: verb as u8,
            post_op: 0,
            operands: operands as u16,
            targets: 0,
            group_size: 0,
            peer: peer as u32,
            forward: Instr::NO_PEER,
            signals: 0,
            first_chunk: self.places.len() as u32,
        });
        self.acts.last_mut().expect("just added")
    }

    fn own(&mut self, blocks: &[Block]) {
        blocks.iter().for_each(|&block| self.chunk(self.rank, block));
    }

    pub(crate) fn send(mut self, peer: usize, blocks: &[Block]) -> Self {
        self.instr(Opcode::Send, peer, blocks.len());
        self.own(blocks);
        self
    }

    pub(crate) fn recv(mut self, peer: usize, targets: &[Block]) -> Self {
        self.instr(Opcode::Recv, peer, targets.len());
        self.own(targets);
        self
    }

    pub(crate) fn recv_reduce(
        mut self,
        peer: usize,
        operands: &[Block],
        targets: &[Block],
        finish: bool,
    ) -> Self {
        self.instr(Opcode::RecvReduce, peer, operands.len()).post_op = finish.into();
        self.own(operands);
        self.own(targets);
        self
    }

    /// Forwards the result of the last receiving instruction to `peer`.
    pub(crate) fn forward(mut self, peer: usize) -> Self {
        self.acts.last_mut().expect("an act before").forward = peer as u32;
        self
    }

    pub(crate) fn copy(mut self, source: Block, target: Block) -> Self {
        self.instr(Opcode::Copy, 0, 1).targets = 1;
        self.own(&[source, target]);
        self
    }

    /// From a block of a peer's window.
    pub(crate) fn get(mut self, peer: usize, source: Block, target: Block) -> Self {
        self.instr(Opcode::Copy, peer, 1).targets = 1;
        self.chunk(peer as u32, source);
        self.own(&[target]);
        self
    }

    /// Combines blocks of ranks into blocks of this one.
    pub(crate) fn reduce(mut self, operands: &[(usize, Block)], targets: &[Block]) -> Self {
        let act = self.instr(Opcode::Reduce, 0, operands.len());
        (act.targets, act.post_op) = (targets.len() as u16, 1);
        operands.iter().for_each(|&(rank, block)| self.chunk(rank as u32, block));
        self.own(targets);
        self
    }

    /// The same, with acts done together that can be.
    pub(crate) fn grouped(mut self) -> Self {
        for lane_program in &self.lane_programs {
            let acts = lane_program.first_instr as usize
                ..(lane_program.first_instr + lane_program.instr_count) as usize;
            Instr::mark_groups(&mut self.acts[acts], &self.places);
        }
        self
    }

    pub(crate) fn signal(mut self) -> Self {
        self.instr(Opcode::Signal, 0, 0);
        self
    }

    pub(crate) fn wait(mut self, peer: usize, signals: u32) -> Self {
        self.instr(Opcode::Wait, peer, 0).signals = signals;
        self
    }
}
