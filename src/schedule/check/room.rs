//! Where the blocks of one rank lie, in place or not.

use crate::schedule::{Block, Collective, Rank, Schedule, Space};

/// The blocks of one rank as cells of one memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// (first cell, blocks) of each space, in the order of [`Space`].
    spaces: [(usize, usize); 4],
    /// All cells.
    pub(super) cells: usize,
}

/// More blocks than any rank can have.
const BLOCKS_MAX: usize = 1 << 28;

impl Room {
    /// The memory of `rank`; none if it would be absurdly large.
    pub(super) fn new(schedule: &Schedule, rank: Rank, in_place: bool) -> Option<Self> {
        let (spec, program) = (&schedule.spec, schedule.programs.get(rank)?);
        let (inputs, outputs) = schedule.collective.shares(spec.ranks, spec.root, rank);
        let inputs = inputs.checked_mul(schedule.parts)?;
        let outputs = outputs.checked_mul(schedule.parts)?;
        let (input, output, buffers) = match in_place && has_in_place(schedule.collective) {
            // A rank that lacks one of the two has nothing to alias.
            true if inputs.min(outputs) > 0 => (
                if inputs < outputs { rank * inputs } else { 0 },
                if outputs < inputs { rank * outputs } else { 0 },
                inputs.max(outputs),
            ),
            _ => (0, inputs, inputs.checked_add(outputs)?),
        };
        let window = buffers.checked_add(program.scratch)?;
        let cells = window.checked_add(program.window)?;
        let spaces =
            [(input, inputs), (output, outputs), (buffers, program.scratch), (window, program.window)];
        (cells <= BLOCKS_MAX).then_some(Self { spaces, cells })
    }

    /// The cell of `block`, if there is such a block.
    pub(super) fn cell(&self, block: Block) -> Option<usize> {
        let (first, blocks) = self.spaces[block.space as usize];
        let index = block.index as usize;
        (index < blocks).then_some(first + index)
    }

    /// How many blocks of `space` there are.
    pub(super) fn blocks(&self, space: Space) -> usize {
        self.spaces[space as usize].1
    }
}

/// Whether the collective has a form where input and output share memory.
pub(super) fn has_in_place(collective: Collective) -> bool {
    !matches!(collective, Collective::AllToAll | Collective::Barrier)
}
