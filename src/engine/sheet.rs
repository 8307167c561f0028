//! A small operation of one hand-over with every place worked out beforehand.
//!
//! Programs over windows in which every rank signals once, when all that its
//! peers will read is laid out, need no window for small data: what was laid
//! out travels in a cell, behind the flag itself. The program is translated
//! once for each size; running it again is a walk over a short list.

use super::layout::Layout;
use super::{Job, Shares};
use crate::call::Call;
use crate::reduction::Reduction;
use crate::schedule::{Block, Place, Program, Rank, Space, Step};
use std::ops::Range;
use unisono_transports::Cell;

/// What distinguishes one sheet from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Of no number, and done by any algorithm.
    pub(super) call: Call,
    input_bytes: usize,
    output_bytes: usize,
    bases: Option<(usize, usize)>,
}

impl Key {
    /// The key of `job`, if its shares are even and small.
    #[inline]
    pub(super) fn of(job: &Job<'_>) -> Option<Self> {
        let (&Shares::Even { bytes: input_bytes }, &Shares::Even { bytes: output_bytes }) =
            (&job.input, &job.output)
        else {
            return None;
        };
        let bases = job.buffers.bases();
        let op = job.reduction.map(Reduction::op);
        let call = Call::new(0, job.kind, job.dtype, op, job.root, job.count);
        let key = Self { call, input_bytes, output_bytes, bases };
        (job.share_bytes_max <= Cell::Long.bytes()).then_some(key)
    }
}

/// One act of a rank. Ranges count from the beginning of a buffer, `at` from that of a cell's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A block of the input into the own cell.
    Lay { from: Range<usize>, at: usize },
    /// Shows the own cell to everybody.
    Post,
    /// Waits for the post of `peer`.
    Wait { peer: Rank },
    /// A block of the input into the output.
    Keep { from: Range<usize>, into: Range<usize> },
    /// A block of somebody's cell into the output.
    Get { from: Rank, at: usize, into: Range<usize> },
    /// The blocks at these places of everybody's cells, combined in the order of the sheet's operands.
    Reduce { into: Range<usize>, finish: bool },
}

impl Act {
    /// Bytes that it writes for peers to read, those that it writes to the output, and whether it reads what peers
    /// wrote. None: it moves nothing.
    pub(super) fn moves(&self, rank: Rank) -> Option<(usize, usize, bool)> {
        Some(match self {
            Act::Lay { from, .. } => (from.len(), 0, false),
            Act::Keep { into, .. } => (0, into.len(), false),
            Act::Get { from, into, .. } => (0, into.len(), *from != rank),
            Act::Reduce { into, .. } => (0, into.len(), true),
            Act::Post | Act::Wait { .. } => return None,
        })
    }
}

/// The acts of one rank for one key.
#[derive(Clone, Debug)]
pub(super) struct Sheet {
    pub(super) key: Key,
    /// As its key says, by the algorithm that it was made from.
    pub(super) call: Call,
    pub(super) acts: Vec<Act>,
    /// In which kind of cell the data of all ranks travels.
    pub(super) cell: Cell,
    /// Whose cell, and where in it.
    pub(super) operands: Vec<(Rank, usize)>,
    /// Bytes that it takes from other ranks.
    pub(super) foreign_bytes: usize,
}

impl Sheet {
    /// Bytes of its lists.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.acts[..]) + size_of_val(&self.operands[..])
    }
}

/// Where the blocks of a window lie in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    cell: Cell,
    /// From one block to the next.
    stride: usize,
}

impl Fit {
    /// How `blocks` blocks of `share_bytes` each fit into a cell; `spare`: with a place for an operand that no
    /// peer reads.
    pub(super) fn new(blocks: usize, share_bytes: usize, spare: bool) -> Option<Self> {
        let stride = share_bytes.next_multiple_of(8);
        let cell = Cell::holding((blocks + usize::from(spare)) * stride)?;
        Some(Self { cell, stride })
    }
}

impl Sheet {
    /// Translates `program`, whose blocks are whole shares, if it is of the kind that can travel in cells.
    pub(super) fn new(key: Key, call: Call, program: &Program, fit: Fit, rank: Rank) -> Option<Self> {
        let [strand] = &program.strands[..] else {
            return None;
        };
        let mut translation = Translation::new((key, call), program.window * fit.stride, fit, rank);
        strand.steps.iter().try_for_each(|step| translation.step(step))?;
        Some(translation.sheet)
    }
}

struct Translation {
    sheet: Sheet,
    input: Layout<'static>,
    output: Layout<'static>,
    stride: usize,
    /// Place for an operand of this rank that no peer reads.
    spare: usize,
    rank: Rank,
    /// Blocks of the input that are in the own cell.
    laid: Vec<(Block, usize)>,
    posted: bool,
}

impl Translation {
    fn new((key, call): (Key, Call), spare: usize, fit: Fit, rank: Rank) -> Self {
        let layout = |bytes| Layout::new(Shares::Even { bytes }, 1, 1);
        Self {
            input: layout(key.input_bytes),
            output: layout(key.output_bytes),
            sheet: Sheet {
                key,
                call,
                acts: Vec::new(),
                cell: fit.cell,
                operands: Vec::new(),
                foreign_bytes: 0,
            },
            stride: fit.stride,
            spare,
            rank,
            laid: Vec::new(),
            posted: false,
        }
    }

    /// `None`: this step cannot be done with cells.
    fn step(&mut self, step: &Step) -> Option<()> {
        let act = match step {
            Step::Copy { from, into } => self.copy(from, into)?,
            // The sum of one, and its average, is itself.
            Step::Reduce { from, into, .. } if from.len() == 1 => self.copy(&from[0], into)?,
            Step::Reduce { from, into, finish } if into.block.space == Space::Output => {
                self.operands(from)?;
                Act::Reduce { into: self.output.block(into.block.index as usize), finish: *finish }
            }
            Step::Signal if !self.posted => {
                self.posted = true;
                Act::Post
            }
            &Step::Wait { peer, signals: 1 } => Act::Wait { peer },
            _ => return None,
        };
        self.sheet.foreign_bytes += self.foreign_bytes(&act);
        self.sheet.acts.push(act);
        Some(())
    }

    fn foreign_bytes(&self, act: &Act) -> usize {
        match act {
            Act::Get { from, into, .. } if *from != self.rank => into.len(),
            Act::Reduce { into, .. } => {
                self.sheet.operands.iter().filter(|operand| operand.0 != self.rank).count() * into.len()
            }
            _ => 0,
        }
    }

    fn copy(&mut self, from: &Place, into: &Place) -> Option<Act> {
        let index = |place: &Place| place.block.index as usize;
        Some(match (from.block.space, into.block.space) {
            (Space::Input, Space::Window) if into.rank == self.rank && !self.posted => {
                let at = index(into) * self.stride;
                self.laid.push((from.block, at));
                Act::Lay { from: self.input.block(index(from)), at }
            }
            (Space::Input, Space::Output) => {
                Act::Keep { from: self.input.block(index(from)), into: self.output.block(index(into)) }
            }
            (Space::Window, Space::Output) => Act::Get {
                from: from.rank,
                at: index(from) * self.stride,
                into: self.output.block(index(into)),
            },
            _ => return None,
        })
    }

    /// Where the operands are: those of this rank are laid into its cell, if they are not there already.
    fn operands(&mut self, from: &[Place]) -> Option<()> {
        if !self.sheet.operands.is_empty() {
            return None;
        }
        for place in from {
            let at = match (place.block.space, self.laid.iter().find(|laid| laid.0 == place.block)) {
                (Space::Window, _) => place.block.index as usize * self.stride,
                (Space::Input, Some(&(_, at))) => at,
                (Space::Input, None) => {
                    let at = self.spare;
                    self.laid.push((place.block, at));
                    let from = self.input.block(place.block.index as usize);
                    self.sheet.acts.push(Act::Lay { from, at });
                    at
                }
                _ => return None,
            };
            self.sheet.operands.push((place.rank, at));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use crate::schedule::{Algorithm, Collective, Reach, Spec};
    use unisono_cuda::DType;

    fn key(collective: Collective) -> Key {
        let call = Call::new(0, Kind::Collective(collective), DType::U8, None, 0, 24);
        Key { call, input_bytes: 24, output_bytes: 24, bases: None }
    }

    /// The sheet of `rank` for the row named `name`.
    fn sheet(collective: Collective, name: &str, rank: Rank) -> Option<Sheet> {
        let row = crate::schedule::find(collective, name).unwrap();
        let program = (row.build)(&Spec { ranks: 3, root: 0, aggregation: 1 }, rank);
        let key = key(collective);
        Sheet::new(key, key.call, &program, Fit::new(3, 24, true).unwrap(), rank)
    }

    #[test]
    fn every_algorithm_over_windows_of_one_hand_over_has_a_sheet() {
        for row in Algorithm::ALL.iter().filter(|row| row.reach == Reach::Windows) {
            let found = sheet(row.collective, row.name, 1).is_some();
            assert_eq!(found, !["twoshot", "relay"].contains(&row.name), "{} {}", row.collective, row.name);
        }
        assert!(sheet(Collective::AllReduce, "ring", 1).is_none());
    }

    #[test]
    fn the_own_operand_is_read_from_the_own_cell() {
        let acts = sheet(Collective::AllReduce, "oneshot", 1).unwrap();
        assert_eq!(acts.operands, [(0, 0), (1, 0), (2, 0)]);
        let acts = sheet(Collective::ReduceScatter, "direct", 1).unwrap();
        assert!(acts.acts.contains(&Act::Lay { from: 24..48, at: 48 }), "{:?}", acts.acts);
        assert!(acts.operands.contains(&(1, 48)), "{:?}", acts.operands);
    }

    #[test]
    fn what_is_short_travels_in_a_line_and_what_is_too_long_not_at_all() {
        let cell = |blocks, bytes, spare| Fit::new(blocks, bytes, spare).map(|fit| fit.cell);
        assert_eq!([cell(7, 4, false), cell(7, 4, true)], [Some(Cell::Short), Some(Cell::Medium)]);
        assert_eq!([cell(1, 8188, true), cell(1, 8193, true)], [Some(Cell::Long), None]);
        assert_eq!(Fit::new(1, 8188, true).map(|fit| fit.stride), Some(8192));
        assert_eq!(cell(1, Cell::Long.bytes(), false), Some(Cell::Long));
    }
}
