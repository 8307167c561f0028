//! Maps the chunks of one rank to cells of memory, in place or not.

use super::violation::Violation;
use crate::schedule::{Chunk, Collective, Rank, Schedule, Space};

/// The chunks of one rank as cells of one memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressSpace {
    /// (first cell, chunks) of each space, in the order of [`Space`].
    spaces: [(usize, usize); 4],
    /// All cells.
    pub(super) size: usize,
}

/// Most chunks of all ranks together, so that the memory of a check stays below a gigabyte.
const CHUNKS_MAX: usize = 1 << 24;

/// Returns the memories of all ranks.
///
/// # Errors
/// A violation if they have more chunks than the checker has memory for. The numbers may come from
/// a file, so nothing is reserved by them before.
pub(super) fn address_spaces(schedule: &Schedule, in_place: bool) -> Result<Vec<AddressSpace>, Violation> {
    let too_many = Violation::Malformed("more chunks than fit a memory");
    let spaces: Option<Vec<AddressSpace>> =
        (0..schedule.spec.ranks).map(|rank| AddressSpace::new(schedule, rank, in_place)).collect();
    let spaces = spaces.ok_or_else(|| too_many.clone())?;
    let chunks: usize = spaces.iter().map(|space| space.size).sum();
    if chunks > CHUNKS_MAX { Err(too_many) } else { Ok(spaces) }
}

impl AddressSpace {
    /// The memory of `rank`; `None` if it has more chunks than any rank can have.
    fn new(schedule: &Schedule, rank: Rank, in_place: bool) -> Option<Self> {
        let (spec, program) = (&schedule.spec, schedule.programs.get(rank)?);
        let (inputs, outputs) = schedule.collective.shares(spec.ranks, spec.root, rank);
        let inputs = inputs.checked_mul(schedule.chunks_per_share)?;
        let outputs = outputs.checked_mul(schedule.chunks_per_share)?;
        let (input, output, buffers) = match in_place && supports_in_place(schedule.collective) {
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
        (cells <= CHUNKS_MAX).then_some(Self { spaces, size: cells })
    }

    /// The cell of `chunk`, if there is such a chunk.
    pub(super) fn address(&self, chunk: Chunk) -> Option<usize> {
        let (first, chunks) = self.spaces[chunk.space as usize];
        let index = chunk.index as usize;
        (index < chunks).then_some(first + index)
    }

    /// How many chunks of `space` there are.
    pub(super) fn chunks(&self, space: Space) -> usize {
        self.spaces[space as usize].1
    }
}

/// Returns true if the collective has a form in which input and output share memory.
pub(super) fn supports_in_place(collective: Collective) -> bool {
    !matches!(collective, Collective::AllToAll | Collective::Barrier)
}
