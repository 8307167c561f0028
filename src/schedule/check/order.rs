//! Which accesses to memory are ordered by messages and signals, and which race.
//!
//! Clocks of strands (Lamport; Mattern 1988): an access is named by its strand and the number of
//! the step, and a strand knows of each other strand the last step that is surely done.

use crate::schedule::Rank;
use std::collections::HashMap;
use std::rc::Rc;

/// Number of a strand among those of all ranks.
pub(super) type StrandId = u32;

/// A step that touched a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) strand: StrandId,
    /// Position of the step, from 1; 0 where there was none.
    pub(super) tick: u32,
}

const NEVER: Access = Access { strand: 0, tick: 0 };

/// What somebody who receives a message or sees a signal learns.
#[derive(Clone)]
pub(super) struct Edge {
    from: Access,
    /// All that the sender knew.
    clock: Option<Rc<[u32]>>,
}

/// How much is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// All that the sender knew.
    Full,
    /// What the sender itself did: less than the truth, so races may be reported that are none,
    /// and none is missed.
    Direct,
    /// Nothing: strands may share no block that one of them writes. Enough where ranks meet in no window.
    Nothing,
}

/// What each strand knows of each other.
pub(super) struct Clocks {
    knowledge: Knowledge,
    known: Vec<Box<[u32]>>,
}

impl Clocks {
    pub(super) fn new(knowledge: Knowledge, strands: usize) -> Self {
        let known = match knowledge {
            Knowledge::Nothing => Vec::new(),
            _ => (0..strands).map(|_| vec![0; strands].into_boxed_slice()).collect(),
        };
        Self { knowledge, known }
    }

    /// What the step `now` tells those that it reaches.
    pub(super) fn edge(&mut self, now: Access) -> Edge {
        let clock = (self.knowledge == Knowledge::Full).then(|| {
            let known = &mut self.known[now.strand as usize];
            known[now.strand as usize] = now.tick;
            Rc::from(&known[..])
        });
        Edge { from: now, clock }
    }

    /// `strand` is told.
    pub(super) fn learn(&mut self, strand: StrandId, edge: &Edge) {
        let Some(known) = self.known.get_mut(strand as usize) else {
            return;
        };
        if let Some(clock) = &edge.clock {
            known.iter_mut().zip(clock.iter()).for_each(|(known, &told)| *known = told.max(*known));
        }
        let of_sender = &mut known[edge.from.strand as usize];
        *of_sender = edge.from.tick.max(*of_sender);
    }

    /// Whether `strand` knows that the strand `other` has done anything.
    pub(super) fn has_heard(&self, strand: StrandId, other: StrandId) -> bool {
        self.known.get(strand as usize).is_some_and(|known| known[other as usize] > 0)
    }

    /// Whether `earlier` is surely done when `now` begins.
    fn ordered(&self, earlier: Access, now: Access) -> bool {
        earlier.tick == 0
            || earlier.strand == now.strand
            || self
                .known
                .get(now.strand as usize)
                .is_some_and(|known| known[earlier.strand as usize] >= earlier.tick)
    }
}

/// Who touched the blocks of one rank.
pub(super) struct Records {
    cells: Vec<Record>,
    /// Readers beside the one in the record: most blocks have none.
    more: HashMap<usize, Vec<Access>>,
    /// Cells before this one are seen by one strand only.
    first: usize,
}

#[derive(Clone, Copy)]
struct Record {
    write: Access,
    /// The first reader since.
    read: Access,
}

impl Records {
    /// For the memory of a rank from cell `first` to `end`.
    pub(super) fn new(first: usize, end: usize) -> Self {
        let record = Record { write: NEVER, read: NEVER };
        Self { cells: vec![record; end - first], more: HashMap::new(), first }
    }

    /// Notes a read; returns the write it races with.
    pub(super) fn read(&mut self, clocks: &Clocks, cell: usize, now: Access) -> Option<Access> {
        let record = self.cells.get_mut(cell.checked_sub(self.first)?)?;
        if !clocks.ordered(record.write, now) {
            return Some(record.write);
        }
        if record.read.tick == 0 || record.read.strand == now.strand {
            record.read = now;
        } else {
            self.more.entry(cell).or_default().push(now);
        }
        None
    }

    /// Notes a write; returns the access it races with.
    pub(super) fn write(&mut self, clocks: &Clocks, cell: usize, now: Access) -> Option<Access> {
        let record = self.cells.get_mut(cell.checked_sub(self.first)?)?;
        let more = if self.more.is_empty() { None } else { self.more.remove(&cell) };
        let mut before = [record.write, record.read].into_iter().chain(more.into_iter().flatten());
        let race = before.find(|&access| !clocks.ordered(access, now));
        *record = Record { write: now, read: NEVER };
        race
    }
}

/// The strands of all ranks, numbered.
pub(super) struct Numbering {
    /// First strand of each rank, and the number of all at the end.
    first: Vec<StrandId>,
}

impl Numbering {
    pub(super) fn new(strands: impl Iterator<Item = usize>) -> Self {
        let mut first = vec![0];
        let mut next = 0;
        first.extend(strands.map(|strands| {
            next += strands as StrandId;
            next
        }));
        Self { first }
    }

    /// Strands of `rank`.
    pub(super) fn of(&self, rank: Rank) -> std::ops::Range<StrandId> {
        self.first[rank]..self.first[rank + 1]
    }

    /// All strands.
    pub(super) fn len(&self) -> usize {
        self.first[self.first.len() - 1] as usize
    }

    /// (rank, strand of that rank).
    pub(super) fn place(&self, strand: StrandId) -> (Rank, usize) {
        let rank = self.first.partition_point(|&first| first <= strand) - 1;
        (rank, (strand - self.first[rank]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_orders_what_came_before_it() {
        for knowledge in [Knowledge::Full, Knowledge::Direct, Knowledge::Nothing] {
            let mut clocks = Clocks::new(knowledge, 3);
            let mut records = Records::new(0, 1);
            let at = |strand, tick| Access { strand, tick };
            assert_eq!(records.write(&clocks, 0, at(0, 1)), None);
            let told = clocks.edge(at(0, 2));
            clocks.learn(1, &told);
            let passed_on = clocks.edge(at(1, 1));
            clocks.learn(2, &passed_on);
            let direct = records.read(&clocks, 0, at(1, 2)).is_none();
            let through_another = records.read(&clocks, 0, at(2, 1)).is_none();
            assert_eq!(direct, knowledge != Knowledge::Nothing);
            assert_eq!(through_another, knowledge == Knowledge::Full);
            // Nothing ever orders the readers before the writer.
            assert!(!direct || records.write(&clocks, 0, at(0, 3)).is_some());
        }
    }
}
