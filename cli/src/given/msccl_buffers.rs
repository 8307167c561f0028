//! The buffers of a GPU in a file of MSCCL, as chunks of a schedule.
//!
//! A schedule never writes the caller's input, but MSCCL writes it when it runs in place. So a cell
//! of MSCCL's buffers stands for the input until a step writes it. After that it stands for the
//! output, or for scratch if it is no output.

use std::collections::HashMap;
use std::rc::Rc;
use unisono::schedule::{Chunk, Collective, Rank, input, output, scratch};

/// The collective and the sizes of a file.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) collective: Collective,
    pub(super) ranks: usize,
    pub(super) root: Rank,
    /// Chunks of a share.
    pub(super) parts: usize,
    pub(super) in_place: bool,
}

/// A buffer of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Input,
    Output,
    Scratch,
    /// Values that a step passes on without storing them.
    Relay,
}

impl Space {
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "i" => Some(Space::Input),
            "o" => Some(Space::Output),
            "s" => Some(Space::Scratch),
            _ => None,
        }
    }
}

/// A chunk of a buffer of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) space: Space,
    pub(super) index: usize,
}

impl Cell {
    pub(super) fn relays(count: usize) -> Vec<Self> {
        (0..count).map(|index| Self { space: Space::Relay, index }).collect()
    }
}

/// The ranks whose inputs are in a value, a bit for each.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contributions(Rc<[u64]>);

impl Contributions {
    fn of(rank: Rank, ranks: usize) -> Self {
        let mut words = vec![0; ranks.div_ceil(64)];
        words[rank / 64] |= 1 << (rank % 64);
        Self(words.into())
    }

    pub(super) fn with(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&*other.0).map(|(word, other)| word | other).collect())
    }

    pub(super) fn is_complete(&self, ranks: usize) -> bool {
        self.0.iter().map(|word| word.count_ones() as usize).sum::<usize>() == ranks
    }
}

/// The buffers of one GPU, in the middle of a run.
pub(super) struct Buffers {
    shape: Shape,
    rank: Rank,
    /// The value of each of its own inputs.
    own_input: Contributions,
    /// Cells that a step has written: where they are, and what they hold.
    written: HashMap<Cell, (Chunk, Contributions)>,
    scratch_chunks: usize,
}

impl Buffers {
    pub(super) fn new(shape: Shape, rank: Rank) -> Self {
        let own_input = Contributions::of(rank, shape.ranks);
        Self { shape, rank, own_input, written: HashMap::new(), scratch_chunks: 0 }
    }

    pub(super) fn scratch_chunks(&self) -> usize {
        self.scratch_chunks
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the places and values of cells, or an error that names a cell without a value.
    pub(super) fn read(&self, cells: &[Cell]) -> Result<(Vec<Chunk>, Vec<Contributions>), String> {
        let value = |cell: &Cell| {
            let known = self.written.get(&self.same(*cell)).cloned();
            let original = || Some((input(self.input_number(self.same(*cell))?), self.own_input.clone()));
            known
                .or_else(original)
                .ok_or_else(|| format!("reads chunk {} of {:?}, which holds nothing", cell.index, cell.space))
        };
        cells.iter().map(value).collect()
    }

    /// Stores values in cells, and returns their places.
    pub(super) fn write(&mut self, cells: &[Cell], values: &[Contributions]) -> Vec<Chunk> {
        let place = |(cell, value): (&Cell, &Contributions)| {
            let cell = self.same(*cell);
            let place = match (self.output_number(cell), self.written.get(&cell)) {
                (Some(number), _) => output(number),
                (None, Some((place, _))) => *place,
                (None, None) => {
                    self.scratch_chunks += 1;
                    scratch(self.scratch_chunks - 1)
                }
            };
            self.written.insert(cell, (place, value.clone()));
            place
        };
        cells.iter().zip(values).map(place).collect()
    }

    /// Returns the outputs that no step has written and that are this rank's input, with its chunk.
    pub(super) fn outputs_in_inputs(&self) -> Vec<(usize, Chunk)> {
        let Shape { collective, ranks, root, parts, .. } = self.shape;
        let outputs = collective.shares(ranks, root, self.rank).1 * parts;
        let unwritten = |number: usize| {
            let cell = self.same(Cell { space: Space::Output, index: number });
            let input_number = self.input_number(cell).filter(|_| !self.written.contains_key(&cell))?;
            Some((number, input(input_number)))
        };
        (0..outputs).filter_map(unwritten).collect()
    }

    /// Returns one name for cells that are the same memory in place.
    fn same(&self, cell: Cell) -> Cell {
        let first_chunk = self.rank * self.shape.parts;
        let (space, index) = match (cell.space, self.shape.collective) {
            _ if !self.shape.in_place => return cell,
            (Space::Input, Collective::AllGather) => (Space::Output, first_chunk + cell.index),
            (Space::Output, Collective::ReduceScatter) => (Space::Input, first_chunk + cell.index),
            (Space::Output, Collective::AllGather | Collective::AllToAll) => return cell,
            (Space::Output, _) => (Space::Input, cell.index),
            _ => return cell,
        };
        Cell { space, index }
    }

    /// Returns the number of the caller's input chunk that a cell is, if it is one.
    fn input_number(&self, cell: Cell) -> Option<usize> {
        let Shape { collective, ranks, root, parts, in_place } = self.shape;
        let number = match (cell.space, collective) {
            (Space::Input, _) => cell.index,
            (Space::Output, Collective::AllGather) if in_place => {
                cell.index.checked_sub(self.rank * parts)?
            }
            _ => return None,
        };
        (number < collective.shares(ranks, root, self.rank).0 * parts).then_some(number)
    }

    /// Returns the number of the caller's output chunk that a cell is, if it is one.
    fn output_number(&self, cell: Cell) -> Option<usize> {
        let Shape { collective, ranks, root, parts, in_place } = self.shape;
        let number = match (cell.space, collective) {
            (Space::Output, _) => cell.index,
            (Space::Input, Collective::ReduceScatter) if in_place => {
                cell.index.checked_sub(self.rank * parts)?
            }
            (Space::Input, Collective::AllReduce | Collective::Broadcast | Collective::Reduce)
                if in_place =>
            {
                cell.index
            }
            _ => return None,
        };
        (number < collective.shares(ranks, root, self.rank).1 * parts).then_some(number)
    }
}
