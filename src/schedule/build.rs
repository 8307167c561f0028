//! A small vocabulary for writing programs.

use super::{Block, Place, Program, Rank, Space, Step, Strand};

/// Writes the program of one rank, step by step, strand by strand.
#[derive(Debug)]
pub struct ProgramBuilder {
    rank: Rank,
    program: Program,
}

impl ProgramBuilder {
    /// An empty program for `rank`, with one strand on lane 0.
    pub fn new(rank: Rank) -> Self {
        let strands = vec![Strand { lane: 0, steps: Vec::new() }];
        Self { rank, program: Program { strands, ..Program::default() } }
    }

    /// Steps that follow go to a new strand on `lane`.
    pub fn strand(&mut self, lane: usize) -> &mut Self {
        self.program.strands.push(Strand { lane, steps: Vec::new() });
        self
    }

    /// Adds a step to the strand being written.
    #[inline]
    pub fn step(&mut self, step: Step) -> &mut Self {
        self.program.strands.last_mut().expect("a builder has a strand").steps.push(step);
        self
    }

    /// Sends blocks to `peer` as one message.
    pub fn send(&mut self, peer: Rank, blocks: impl Into<Vec<Block>>) -> &mut Self {
        self.step(Step::Send { peer, blocks: blocks.into() })
    }

    /// Receives one message from `peer` into blocks.
    pub fn recv(&mut self, peer: Rank, into: impl Into<Vec<Block>>) -> &mut Self {
        self.step(Step::Recv { peer, into: into.into() })
    }

    /// Receives one message from `peer` and combines it with `with`.
    pub fn recv_reduce(
        &mut self,
        peer: Rank,
        with: impl Into<Vec<Block>>,
        into: impl Into<Vec<Block>>,
        finish: bool,
    ) -> &mut Self {
        self.step(Step::RecvReduce { peer, with: with.into(), into: into.into(), finish })
    }

    /// Copies between blocks of this rank.
    pub fn copy(&mut self, from: Block, into: Block) -> &mut Self {
        self.step(Step::Copy { from: at(self.rank, from), into: at(self.rank, into) })
    }

    /// Copies from a block of `peer`'s window.
    pub fn get(&mut self, peer: Rank, from: Block, into: Block) -> &mut Self {
        self.step(Step::Copy { from: at(peer, from), into: at(self.rank, into) })
    }

    /// Copies into a block of `peer`'s window.
    pub fn put(&mut self, from: Block, peer: Rank, into: Block) -> &mut Self {
        self.step(Step::Copy { from: at(self.rank, from), into: at(peer, into) })
    }

    /// Combines places into a block of this rank, in one pass.
    pub fn reduce(&mut self, from: Vec<Place>, into: Block, finish: bool) -> &mut Self {
        self.step(Step::Reduce { from, into: at(self.rank, into), finish })
    }

    /// Tells all ranks that everything so far is done here.
    pub fn signal(&mut self) -> &mut Self {
        self.step(Step::Signal)
    }

    /// Waits for the `signals`-th signal of `peer`.
    pub fn wait(&mut self, peer: Rank, signals: u32) -> &mut Self {
        self.step(Step::Wait { peer, signals })
    }

    /// The program, with its scratch and window sizes; strands left empty are dropped.
    pub fn finish(mut self, scratch: usize, window: usize) -> Program {
        self.program.strands.retain(|strand| !strand.steps.is_empty());
        self.program.scratch = scratch;
        self.program.window = window;
        self.program
    }
}

/// Block `index` of the caller's send buffer.
pub const fn input(index: usize) -> Block {
    Block { space: Space::Input, index: index as u32 }
}

/// Block `index` of the caller's receive buffer.
pub const fn output(index: usize) -> Block {
    Block { space: Space::Output, index: index as u32 }
}

/// Block `index` of scratch memory.
pub const fn scratch(index: usize) -> Block {
    Block { space: Space::Scratch, index: index as u32 }
}

/// Block `index` of a window.
pub const fn window(index: usize) -> Block {
    Block { space: Space::Window, index: index as u32 }
}

/// A block at `rank`.
pub const fn at(rank: Rank, block: Block) -> Place {
    Place { rank, block }
}
