//! Functions that build programs.

use crate::schedule::{Chunk, ChunkRef, LaneProgram, Program, Rank, Space, Step};

/// Builds the program of one rank, step by step and one lane program after the other.
#[derive(Debug)]
pub struct ProgramBuilder {
    rank: Rank,
    /// The program so far. Its sizes include the memory of embedded algorithms and the reserved
    /// memory.
    program: Program,
    reserved_scratch: usize,
}

impl ProgramBuilder {
    /// Returns a builder with an empty program for `rank`, which has one lane program on lane 0.
    pub fn new(rank: Rank) -> Self {
        let lane_programs = vec![LaneProgram { lane: 0, steps: Vec::new() }];
        Self { rank, program: Program { lane_programs, ..Program::default() }, reserved_scratch: 0 }
    }

    /// Returns the first of `chunks` chunks of scratch that no embedded algorithm uses. Call it
    /// before [`ProgramBuilder::embed`].
    pub fn reserve_scratch(&mut self, chunks: usize) -> usize {
        let first = self.reserved_scratch;
        self.reserved_scratch += chunks;
        self.use_scratch(0);
        first
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn reserved_scratch(&self) -> usize {
        self.reserved_scratch
    }

    /// Adds scratch for an embedded algorithm, after the reserved part.
    pub(super) fn use_scratch(&mut self, chunks: usize) {
        self.program.scratch = self.program.scratch.max(self.reserved_scratch + chunks);
    }

    /// Returns the first of `chunks` chunks of the window that nothing else uses.
    pub(super) fn use_window(&mut self, chunks: usize) -> usize {
        self.program.window += chunks;
        self.program.window - chunks
    }

    /// Returns the number of signals in the current lane program.
    pub(super) fn signals(&self) -> u32 {
        let steps = self.program.lane_programs.last().map_or(&[][..], |lane_program| &lane_program.steps);
        steps.iter().filter(|step| **step == Step::Signal).count() as u32
    }

    /// Begins a new lane program on `lane` for the steps that follow.
    pub fn begin_lane(&mut self, lane: usize) -> &mut Self {
        self.program.lane_programs.push(LaneProgram { lane, steps: Vec::new() });
        self
    }

    /// Adds a step to the current lane program.
    #[inline]
    pub fn step(&mut self, step: Step) -> &mut Self {
        self.program.lane_programs.last_mut().expect("a builder has a lane program").steps.push(step);
        self
    }

    /// Sends chunks to `peer` as one message.
    pub fn send(&mut self, peer: Rank, chunks: impl Into<Vec<Chunk>>) -> &mut Self {
        self.step(Step::Send { peer, chunks: chunks.into() })
    }

    /// Receives one message from `peer` into chunks.
    pub fn recv(&mut self, peer: Rank, into: impl Into<Vec<Chunk>>) -> &mut Self {
        self.step(Step::Recv { peer, into: into.into() })
    }

    /// Receives one message from `peer` and combines it with `with`.
    pub fn recv_reduce(
        &mut self,
        peer: Rank,
        with: impl Into<Vec<Chunk>>,
        into: impl Into<Vec<Chunk>>,
        finish: bool,
    ) -> &mut Self {
        self.step(Step::RecvReduce { peer, with: with.into(), into: into.into(), finish })
    }

    /// Copies between chunks of this rank.
    pub fn copy(&mut self, from: Chunk, into: Chunk) -> &mut Self {
        self.step(Step::Copy { from: chunk_at(self.rank, from), into: chunk_at(self.rank, into) })
    }

    /// Copies from a chunk of `peer`'s window.
    pub fn get(&mut self, peer: Rank, from: Chunk, into: Chunk) -> &mut Self {
        self.step(Step::Copy { from: chunk_at(peer, from), into: chunk_at(self.rank, into) })
    }

    /// Copies into a chunk of `peer`'s window.
    pub fn put(&mut self, from: Chunk, peer: Rank, into: Chunk) -> &mut Self {
        self.step(Step::Copy { from: chunk_at(self.rank, from), into: chunk_at(peer, into) })
    }

    /// Combines several chunks into a chunk of this rank, in one pass.
    pub fn reduce(&mut self, from: Vec<ChunkRef>, into: Chunk, finish: bool) -> &mut Self {
        self.step(Step::Reduce { from, into: chunk_at(self.rank, into), finish })
    }

    /// Tells all ranks that all earlier steps of the lane program are done.
    pub fn signal(&mut self) -> &mut Self {
        self.step(Step::Signal)
    }

    /// Waits until `peer` has signaled `signals` times.
    pub fn wait(&mut self, peer: Rank, signals: u32) -> &mut Self {
        self.step(Step::Wait { peer, signals })
    }

    /// Returns the program, with at least `scratch` chunks of scratch and `window` chunks of its
    /// window. There are more if embedded algorithms use more. Empty lane programs are dropped.
    pub fn finish(mut self, scratch: usize, window: usize) -> Program {
        self.program.lane_programs.retain(|lane_program| !lane_program.steps.is_empty());
        self.program.scratch = self.program.scratch.max(scratch);
        self.program.window = self.program.window.max(window);
        self.program
    }
}

/// Returns chunk `index` of the caller's send buffer.
pub const fn input(index: usize) -> Chunk {
    Chunk { space: Space::Input, index: index as u32 }
}

/// Returns chunk `index` of the caller's receive buffer.
pub const fn output(index: usize) -> Chunk {
    Chunk { space: Space::Output, index: index as u32 }
}

/// Returns chunk `index` of scratch memory.
pub const fn scratch(index: usize) -> Chunk {
    Chunk { space: Space::Scratch, index: index as u32 }
}

/// Returns chunk `index` of a window.
pub const fn window(index: usize) -> Chunk {
    Chunk { space: Space::Window, index: index as u32 }
}

/// Returns a reference to a chunk of `rank`.
pub const fn chunk_at(rank: Rank, chunk: Chunk) -> ChunkRef {
    ChunkRef { rank, chunk }
}
