//! Finds accesses to memory that messages and signals do not order.
//!
//! Clocks of lane programs (Lamport; Mattern 1988): an access is named by its lane program and the
//! number of the step, and a lane program knows of each other lane program the last step that is
//! surely done.

use crate::schedule::Rank;
use std::collections::HashMap;
use std::rc::Rc;

/// Number of a lane program among those of all ranks.
pub(super) type LaneProgramId = u32;

/// A step that touched a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) lane_program: LaneProgramId,
    /// Position of the step, from 1; 0 where there was none.
    pub(super) tick: u32,
}

const NO_ACCESS: Access = Access { lane_program: 0, tick: 0 };

/// The knowledge that a message or a signal passes on.
#[derive(Clone)]
pub(super) struct Edge {
    from: Access,
    /// All knowledge of the sender.
    clock: Option<Rc<[u32]>>,
}

/// The amount of knowledge that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockMode {
    /// All knowledge of the sender.
    Full,
    /// The sender's own steps: less than the truth, so races may be reported that are none,
    /// and none is missed.
    Direct,
    /// Nothing: lane programs may share no chunk that one of them writes. Enough where ranks meet
    /// in no window.
    Disabled,
}

/// The knowledge of each lane program about each other.
pub(super) struct VectorClocks {
    mode: ClockMode,
    clocks: Vec<Box<[u32]>>,
}

impl VectorClocks {
    pub(super) fn new(knowledge: ClockMode, lane_programs: usize) -> Self {
        let known = match knowledge {
            ClockMode::Disabled => Vec::new(),
            _ => (0..lane_programs).map(|_| vec![0; lane_programs].into_boxed_slice()).collect(),
        };
        Self { mode: knowledge, clocks: known }
    }

    /// The knowledge that the step `now` passes on.
    pub(super) fn edge(&mut self, now: Access) -> Edge {
        let clock = (self.mode == ClockMode::Full).then(|| {
            let known = &mut self.clocks[now.lane_program as usize];
            known[now.lane_program as usize] = now.tick;
            Rc::from(&known[..])
        });
        Edge { from: now, clock }
    }

    /// Adds knowledge to `lane_program`.
    pub(super) fn merge(&mut self, lane_program: LaneProgramId, edge: &Edge) {
        let Some(known) = self.clocks.get_mut(lane_program as usize) else {
            return;
        };
        if let Some(clock) = &edge.clock {
            known.iter_mut().zip(clock.iter()).for_each(|(known, &told)| *known = told.max(*known));
        }
        let of_sender = &mut known[edge.from.lane_program as usize];
        *of_sender = edge.from.tick.max(*of_sender);
    }

    /// Returns true if `lane_program` knows of any step of the lane program `other`.
    pub(super) fn has_heard_from(&self, lane_program: LaneProgramId, other: LaneProgramId) -> bool {
        self.clocks.get(lane_program as usize).is_some_and(|known| known[other as usize] > 0)
    }

    /// Returns true if `earlier` is surely done when `now` begins.
    fn happens_before(&self, earlier: Access, now: Access) -> bool {
        earlier.tick == 0
            || earlier.lane_program == now.lane_program
            || self
                .clocks
                .get(now.lane_program as usize)
                .is_some_and(|known| known[earlier.lane_program as usize] >= earlier.tick)
    }
}

/// The last accesses to the chunks of one rank.
pub(super) struct AccessHistory {
    entries: Vec<LastAccess>,
    /// Readers beside the one in the record: most chunks have none.
    extra_readers: HashMap<usize, Vec<Access>>,
    /// Cells before this one are seen by one lane program only.
    first_address: usize,
}

#[derive(Clone, Copy)]
struct LastAccess {
    last_write: Access,
    /// The first reader since.
    first_read: Access,
}

impl AccessHistory {
    /// For the memory of a rank from cell `first` to `end`.
    pub(super) fn new(first: usize, end: usize) -> Self {
        let record = LastAccess { last_write: NO_ACCESS, first_read: NO_ACCESS };
        Self { entries: vec![record; end - first], extra_readers: HashMap::new(), first_address: first }
    }

    /// Records a read; returns the write it races with.
    pub(super) fn read(&mut self, clocks: &VectorClocks, cell: usize, now: Access) -> Option<Access> {
        let record = self.entries.get_mut(cell.checked_sub(self.first_address)?)?;
        if !clocks.happens_before(record.last_write, now) {
            return Some(record.last_write);
        }
        if record.first_read.tick == 0 || record.first_read.lane_program == now.lane_program {
            record.first_read = now;
        } else {
            self.extra_readers.entry(cell).or_default().push(now);
        }
        None
    }

    /// Records a write; returns the access it races with.
    pub(super) fn write(&mut self, clocks: &VectorClocks, cell: usize, now: Access) -> Option<Access> {
        let record = self.entries.get_mut(cell.checked_sub(self.first_address)?)?;
        let more = if self.extra_readers.is_empty() { None } else { self.extra_readers.remove(&cell) };
        let mut accesses =
            [record.last_write, record.first_read].into_iter().chain(more.into_iter().flatten());
        let race = accesses.find(|&access| !clocks.happens_before(access, now));
        *record = LastAccess { last_write: now, first_read: NO_ACCESS };
        race
    }
}

/// The lane programs of all ranks, numbered.
pub(super) struct LaneProgramIds {
    /// First lane program of each rank, and the number of all at the end.
    first: Vec<LaneProgramId>,
}

impl LaneProgramIds {
    pub(super) fn new(lane_programs: impl Iterator<Item = usize>) -> Self {
        let mut first = vec![0];
        let mut next = 0;
        first.extend(lane_programs.map(|lane_programs| {
            next += lane_programs as LaneProgramId;
            next
        }));
        Self { first }
    }

    /// Lane programs of `rank`.
    pub(super) fn of(&self, rank: Rank) -> std::ops::Range<LaneProgramId> {
        self.first[rank]..self.first[rank + 1]
    }

    /// All lane programs.
    pub(super) fn len(&self) -> usize {
        self.first[self.first.len() - 1] as usize
    }

    /// (rank, lane program of that rank).
    pub(super) fn locate(&self, lane_program: LaneProgramId) -> (Rank, usize) {
        let rank = self.first.partition_point(|&first| first <= lane_program) - 1;
        (rank, (lane_program - self.first[rank]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_clocks_signal_orders_earlier_accesses() {
        for knowledge in [ClockMode::Full, ClockMode::Direct, ClockMode::Disabled] {
            let mut clocks = VectorClocks::new(knowledge, 3);
            let mut records = AccessHistory::new(0, 1);
            let access = |lane_program, tick| Access { lane_program, tick };
            assert_eq!(records.write(&clocks, 0, access(0, 1)), None);
            let told = clocks.edge(access(0, 2));
            clocks.merge(1, &told);
            let passed_on = clocks.edge(access(1, 1));
            clocks.merge(2, &passed_on);
            let direct = records.read(&clocks, 0, access(1, 2)).is_none();
            let through_another = records.read(&clocks, 0, access(2, 1)).is_none();
            assert_eq!(direct, knowledge != ClockMode::Disabled);
            assert_eq!(through_another, knowledge == ClockMode::Full);
            // Nothing ever orders the readers before the writer.
            assert!(!direct || records.write(&clocks, 0, access(0, 3)).is_some());
        }
    }
}
