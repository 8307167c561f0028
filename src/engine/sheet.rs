//! A small operation of one hand-over with every place worked out beforehand.
//!
//! Programs over windows in which every rank signals once, when all that its
//! peers will read is laid out, need no window for small data: what was laid
//! out travels in a cell, behind the flag itself. The program is translated
//! once for each size; running it again is a walk over a short list.

use super::layout::Layout;
use super::spots::Spots;
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
        (job.share_bytes_max <= Cell::Pages32.bytes()).then_some(key)
    }
}

/// One act of a rank. Ranges count from the beginning of a buffer, `at` from that of a cell's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A block of the input into the own cell.
    Lay { from: Range<usize>, at: usize },
    /// A block of the input into the own cell and into the output, in one pass.
    Spread { from: Range<usize>, at: usize, into: Range<usize> },
    /// Shows the own cell to everybody.
    Post,
    /// Waits for the post of `peer`.
    Wait { peer: Rank },
    /// A block of the input into the output.
    Keep { from: Range<usize>, into: Range<usize> },
    /// A block of somebody's cell into the output.
    Get { from: Rank, at: usize, into: Range<usize> },
    /// Blocks of everybody's, combined in the order of the sheet's operands.
    Reduce { into: Range<usize>, finish: bool },
}

impl Act {
    /// Bytes that it writes for peers to read, those that it writes to the output, and whether it reads what peers
    /// wrote. None: it moves nothing.
    pub(super) fn moves(&self, rank: Rank) -> Option<(usize, usize, bool)> {
        Some(match self {
            Act::Lay { from, .. } => (from.len(), 0, false),
            Act::Spread { from, into, .. } => (from.len(), into.len(), false),
            Act::Keep { into, .. } => (0, into.len(), false),
            Act::Get { from, into, .. } => (0, into.len(), *from != rank),
            Act::Reduce { into, .. } => (0, into.len(), true),
            Act::Post | Act::Wait { .. } => return None,
        })
    }
}

/// One of the blocks that are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// Of the input, from here on.
    Input(usize),
    /// What is in the output's place, as the input is in the same memory.
    Output,
    /// Of the cell of `rank`, from `at` on.
    Cell { rank: Rank, at: usize },
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
    pub(super) spots: Spots,
    pub(super) operands: Vec<Operand>,
    /// Which of them is [`Operand::Output`], if one is.
    pub(super) own: Option<usize>,
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
    spots: Spots,
    /// From one block to the next.
    stride: usize,
}

impl Fit {
    /// How `blocks` blocks of `share_bytes` each fit into a cell; `spare`: with a place for an operand that no
    /// peer reads.
    pub(super) fn new(blocks: usize, share_bytes: usize, spare: bool, ranks: usize) -> Option<Self> {
        let stride = share_bytes.next_multiple_of(8);
        let bytes = (blocks + usize::from(spare)) * stride;
        let cell = Cell::holding(bytes, ranks)?;
        Some(Self { cell, spots: Spots::new(cell, bytes, ranks), stride })
    }
}

impl Sheet {
    /// Translates `program`, whose blocks are whole shares, if it is of the kind that can travel in cells. `plain`: the
    /// input is added as it is, not multiplied beforehand.
    pub(super) fn new(
        (key, call): (Key, Call),
        program: &Program,
        fit: Fit,
        plain: bool,
        rank: Rank,
    ) -> Option<Self> {
        let [strand] = &program.strands[..] else {
            return None;
        };
        let mut translation = Translation::new((key, call), program.window * fit.stride, fit, plain, rank);
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
    plain: bool,
    rank: Rank,
    /// Blocks of the input that are in the own cell.
    laid: Vec<(Block, usize)>,
    posted: bool,
}

impl Translation {
    fn new((key, call): (Key, Call), spare: usize, fit: Fit, plain: bool, rank: Rank) -> Self {
        let layout = |bytes| Layout::new(Shares::Even { bytes }, 1, 1);
        Self {
            input: layout(key.input_bytes),
            output: layout(key.output_bytes),
            sheet: Sheet {
                key,
                call,
                acts: Vec::new(),
                cell: fit.cell,
                spots: fit.spots,
                operands: Vec::new(),
                own: None,
                foreign_bytes: 0,
            },
            stride: fit.stride,
            spare,
            plain,
            rank,
            laid: Vec::new(),
            posted: false,
        }
    }

    /// `None`: this step cannot be done with cells.
    fn step(&mut self, step: &Step) -> Option<()> {
        let act = match step {
            Step::Copy { from, into } => match self.spread(from, into) {
                Some(()) => return Some(()),
                None => self.copy(from, into)?,
            },
            // The sum of one, and its average, is itself.
            Step::Reduce { from, into, .. } if from.len() == 1 => self.copy(&from[0], into)?,
            Step::Reduce { from, into, finish } if into.block.space == Space::Output => {
                let into = self.output.block(into.block.index as usize);
                self.operands(from, into.start)?;
                Act::Reduce { into, finish: *finish }
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
                let is_foreign =
                    |operand: &&Operand| matches!(operand, Operand::Cell { rank, .. } if *rank != self.rank);
                self.sheet.operands.iter().filter(is_foreign).count() * into.len()
            }
            _ => 0,
        }
    }

    /// Makes the act that lays a long block of the input into the cell one that gives it to the output, too. `None`: there is none
    /// that could. Nothing else writes that part of the output.
    fn spread(&mut self, from: &Place, into: &Place) -> Option<()> {
        let kept = self.input.block(from.block.index as usize);
        let apart = self.plain && self.sheet.key.bases.is_none();
        let spaces = (from.block.space, into.block.space);
        if spaces != (Space::Input, Space::Output) || !apart || kept.len() < SPREAD_FROM_BYTES {
            return None;
        }
        let into = self.output.block(into.block.index as usize);
        let (at, act) = self.sheet.acts.iter_mut().find_map(|act| match act {
            Act::Lay { from, at } if *from == kept => Some((*at, act)),
            _ => None,
        })?;
        *act = Act::Spread { from: kept, at, into };
        Some(())
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

    /// Where the operands are of what comes to `into` in the output.
    fn operands(&mut self, from: &[Place], into: usize) -> Option<()> {
        if !self.sheet.operands.is_empty() {
            return None;
        }
        for place in from {
            let index = place.block.index as usize;
            let operand = match place.block.space {
                Space::Window => Operand::Cell { rank: place.rank, at: index * self.stride },
                Space::Input => self.own_operand(place.block, into)?,
                _ => return None,
            };
            self.sheet.operands.push(operand);
        }
        self.sheet.own = self.sheet.operands.iter().position(|operand| *operand == Operand::Output);
        Some(())
    }

    /// Where an operand of this rank is. What is plain is best read from where it is, since the cell that it may be laid into
    /// is wanted by peers at that time. What is multiplied beforehand is laid into the cell, if it is not there. `None`: it
    /// would be written over, which no operation has; input and output of a reduction in place begin at one address.
    fn own_operand(&mut self, block: Block, into: usize) -> Option<Operand> {
        let from = self.input.block(block.index as usize).start;
        let laid = self.laid.iter().find(|laid| laid.0 == block).map(|&(_, at)| at);
        match self.sheet.key.bases {
            _ if !self.plain => {
                let at = laid.unwrap_or_else(|| self.lay_apart(block));
                Some(Operand::Cell { rank: self.rank, at })
            }
            None => Some(Operand::Input(from)),
            Some((input, output)) if input + from == output + into => Some(Operand::Output),
            Some(_) => laid.map(|at| Operand::Cell { rank: self.rank, at }),
        }
    }

    /// Lays a block of the input where no peer reads.
    fn lay_apart(&mut self, block: Block) -> usize {
        self.laid.push((block, self.spare));
        let from = self.input.block(block.index as usize);
        self.sheet.acts.push(Act::Lay { from, at: self.spare });
        self.spare
    }
}

/// From here on reading a block once is worth showing it a little later.
const SPREAD_FROM_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use crate::schedule::{Algorithm, Collective, Reach, Spec};
    use unisono_cuda::DType;

    /// The sheet of rank 1 of 3 for the row named `name`, in one memory if input and output begin somewhere in it.
    fn sheet(
        collective: Collective,
        name: &str,
        bases: Option<(usize, usize)>,
        plain: bool,
    ) -> Option<Sheet> {
        let row = crate::schedule::find(collective, name).unwrap();
        let program = (row.build)(&Spec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let call = Call::new(0, Kind::Collective(collective), DType::U8, None, 0, 24);
        let key = Key { call, input_bytes: 24, output_bytes: 24, bases };
        Sheet::new((key, key.call), &program, Fit::new(3, 24, true, 3).unwrap(), plain, 1)
    }

    #[test]
    fn every_algorithm_over_windows_of_one_hand_over_has_a_sheet() {
        for row in Algorithm::ALL.iter().filter(|row| row.reach == Reach::Windows) {
            let found = sheet(row.collective, row.name, None, true).is_some();
            assert_eq!(found, !["twoshot", "relay"].contains(&row.name), "{} {}", row.collective, row.name);
        }
        assert!(sheet(Collective::AllReduce, "ring", None, true).is_none());
    }

    #[test]
    fn the_own_operand_is_read_from_where_it_is_if_that_is_possible() {
        let cell = |rank, at| Operand::Cell { rank, at };
        let own = |name, bases, plain| sheet(Collective::AllReduce, name, bases, plain).unwrap().operands;
        assert_eq!(own("oneshot", None, true), [cell(0, 0), Operand::Input(0), cell(2, 0)]);
        assert_eq!(own("oneshot", Some((0, 0)), true), [cell(0, 0), Operand::Output, cell(2, 0)]);
        assert_eq!(own("oneshot", Some((0, 24)), true), [cell(0, 0), cell(1, 0), cell(2, 0)]);
        assert_eq!(own("oneshot", None, false), [cell(0, 0), cell(1, 0), cell(2, 0)]);
    }

    #[test]
    fn an_own_operand_that_no_peer_reads_is_laid_apart_if_it_cannot_be_read_where_it_is() {
        let laid = Act::Lay { from: 24..48, at: 48 };
        let own_in_cell = Operand::Cell { rank: 1, at: 48 };
        for (bases, plain, own) in [
            (None, true, Operand::Input(24)),
            (None, false, own_in_cell),
            (Some((0, 24)), true, Operand::Output),
            (Some((0, 24)), false, own_in_cell),
        ] {
            let sheet = sheet(Collective::ReduceScatter, "direct", bases, plain).unwrap();
            assert_eq!(sheet.acts.contains(&laid), own == own_in_cell, "{:?}", sheet.acts);
            assert!(sheet.operands.contains(&own), "{:?}", sheet.operands);
        }
    }

    #[test]
    fn an_own_operand_that_would_be_written_over_and_is_in_no_cell_is_refused() {
        assert!(sheet(Collective::ReduceScatter, "direct", Some((0, 8)), true).is_none());
    }

    #[test]
    fn a_long_block_that_peers_and_the_output_get_is_read_once() {
        let bytes = SPREAD_FROM_BYTES;
        let acts = |bytes: usize, bases: Option<(usize, usize)>| {
            let row = crate::schedule::find(Collective::AllGather, "direct").unwrap();
            let program = (row.build)(&Spec { ranks: 2, root: 0, aggregation: 1 }, 1);
            let call = Call::new(0, Kind::Collective(Collective::AllGather), DType::U8, None, 0, 0);
            let key = Key { call, input_bytes: bytes, output_bytes: bytes, bases };
            let fit = Fit::new(1, bytes, false, 2).unwrap();
            Sheet::new((key, call), &program, fit, true, 1).unwrap().acts
        };
        let spread = Act::Spread { from: 0..bytes, at: 0, into: bytes..2 * bytes };
        assert_eq!(acts(bytes, None)[..2], [spread, Act::Post]);
        let apart = [Act::Lay { from: 0..bytes, at: 0 }, Act::Post];
        assert_eq!(acts(bytes, Some((0, 0)))[..2], apart);
        assert_eq!(acts(bytes - 8, None)[0], Act::Lay { from: 0..bytes - 8, at: 0 });
    }

    #[test]
    fn what_is_short_travels_in_a_line_and_what_is_too_long_not_at_all() {
        let cell = |blocks, bytes, spare| Fit::new(blocks, bytes, spare, 2).map(|fit| fit.cell);
        assert_eq!([cell(7, 4, false), cell(7, 4, true)], [Some(Cell::Short), Some(Cell::Medium)]);
        assert_eq!([cell(1, 8188, true), cell(1, 8193, true)], [Some(Cell::Pages4), Some(Cell::Pages8)]);
        assert_eq!(Fit::new(1, 8188, true, 2).map(|fit| fit.stride), Some(8192));
        // Two ranks leave room behind what they read.
        let half_page = |bytes, ranks| Fit::new(1, bytes, false, ranks).map(|fit| fit.cell == Cell::Medium);
        assert_eq!(
            [half_page(1536, 2), half_page(1537, 2), half_page(1537, 3)],
            [Some(true), Some(false), Some(true)]
        );
        assert_eq!([cell(1, 128 << 10, false), cell(1, 128 << 10, true)], [Some(Cell::Pages32), None]);
    }
}
