//! What each collective promises about its outputs.

use super::machine::Machine;
use super::value::{EMPTY, RAW, Value, mix};
use super::violation::{Violation, Wrong};
use crate::schedule::{Collective, Rank, Space, output};

/// What a run that kept every promise looked like.
pub(super) struct Outputs {
    /// The order of summation of one output block.
    pub(super) expression: Option<String>,
    /// A hash of the expressions in all outputs.
    pub(super) order: u64,
}

impl Machine<'_> {
    /// Whether every output block holds what it should, and the same bits wherever it should be the same.
    pub(super) fn outputs(&mut self) -> Result<Outputs, Violation> {
        let mut order = 0u64;
        let mut sample = None;
        for rank in 0..self.schedule.spec.ranks {
            for index in 0..self.memories[rank].room.blocks(Space::Output) {
                let value = self.output(rank, index);
                if let Err(wrong) = self.is_promised(rank, index, value) {
                    return Err(Violation::Output { rank, index, wrong });
                }
                order = mix(order ^ self.values.hash(value)).wrapping_add(index as u64);
                sample.get_or_insert(value);
            }
        }
        if self.schedule.collective == Collective::Barrier {
            self.all_have_come()?;
        }
        let reduces = self.schedule.collective.reduces();
        let expression = sample.filter(|_| reduces).map(|value| self.values.expression(value));
        Ok(Outputs { expression, order })
    }

    fn output(&self, rank: Rank, index: usize) -> Value {
        let memory = &self.memories[rank];
        memory.room.cell(output(index)).map_or(EMPTY, |cell| memory.cells[cell])
    }

    fn is_promised(&mut self, rank: Rank, index: usize, value: Value) -> Result<(), Wrong> {
        let (parts, root) = (self.schedule.parts, self.schedule.spec.root);
        let (share, part) = (index / parts, index % parts);
        let moved = match self.schedule.collective {
            _ if matches!(value, EMPTY | RAW) => return Err(Wrong::Missing),
            Collective::AllReduce if rank > 0 => {
                return if value == self.output(0, index) { Ok(()) } else { Err(Wrong::DiffersFrom(0)) };
            }
            Collective::AllReduce | Collective::Reduce => {
                return self.values.is_complete_sum(value, |_| index);
            }
            Collective::ReduceScatter => {
                return self.values.is_complete_sum(value, |_| rank * parts + part);
            }
            Collective::AllGather | Collective::Gather => self.values.leaf(share, part),
            Collective::Broadcast => self.values.leaf(root, part),
            Collective::Scatter => self.values.leaf(root, rank * parts + part),
            Collective::AllToAll => self.values.leaf(share, rank * parts + part),
            Collective::Barrier => return Ok(()),
        };
        if value == moved { Ok(()) } else { Err(Wrong::NotTheInput) }
    }

    /// Whether every rank has heard, directly or not, from every other.
    fn all_have_come(&self) -> Result<(), Violation> {
        let ranks = self.schedule.spec.ranks;
        for rank in 0..ranks {
            for other in (0..ranks).filter(|&other| other != rank) {
                let mut pairs = self
                    .numbering
                    .of(rank)
                    .flat_map(|own| self.numbering.of(other).map(move |strand| (own, strand)));
                if !pairs.any(|(own, strand)| self.clocks.has_heard(own, strand)) {
                    return Err(Violation::Barrier { rank, missing: other });
                }
            }
        }
        Ok(())
    }
}
