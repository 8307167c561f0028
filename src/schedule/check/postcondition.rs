//! Checks the outputs of each collective.

use crate::schedule::check::executor::Executor;
use crate::schedule::check::expression::{ExprId, ORIGINAL_INPUT, UNINITIALIZED, mix};
use crate::schedule::check::violation::{OutputError, Violation};
use crate::schedule::{Collective, Rank, Space, output};

/// The outputs of a run that fulfills its collective.
pub(super) struct Outputs {
    /// The order of summation of one output chunk.
    pub(super) expression: Option<String>,
    /// A hash of the expressions in all outputs.
    pub(super) order_hash: u64,
}

impl Executor<'_> {
    /// Checks that every output chunk holds its value, with equal bits on all ranks that share it.
    pub(super) fn check_outputs(&mut self) -> Result<Outputs, Violation> {
        let mut order = 0u64;
        let mut sample = None;
        for rank in 0..self.schedule.spec.ranks {
            for index in 0..self.memories[rank].address_space.chunks(Space::Output) {
                let value = self.output(rank, index);
                if let Err(wrong) = self.check_output(rank, index, value) {
                    return Err(Violation::Output { rank, index, error: wrong, fate: None });
                }
                order = mix(order ^ self.values.hash(value)).wrapping_add(index as u64);
                // The last rank of a scan has the longest expression.
                sample = sample.filter(|_| !self.schedule.collective.is_scan()).or(Some(value));
            }
        }
        if self.schedule.collective == Collective::Barrier {
            self.check_barrier()?;
        }
        let reduces = self.schedule.collective.reduces();
        let expression = sample.filter(|_| reduces).map(|value| self.values.expression(value));
        Ok(Outputs { expression, order_hash: order })
    }

    fn output(&self, rank: Rank, index: usize) -> ExprId {
        let memory = &self.memories[rank];
        memory.address_space.address(output(index)).map_or(UNINITIALIZED, |cell| memory.contents[cell])
    }

    fn check_output(&mut self, rank: Rank, index: usize, value: ExprId) -> Result<(), OutputError> {
        let (parts, root) = (self.schedule.chunks_per_share, self.schedule.spec.root);
        let (share, part) = (index / parts, index % parts);
        let moved = match self.schedule.collective {
            _ if matches!(value, UNINITIALIZED | ORIGINAL_INPUT) => return Err(OutputError::Missing),
            Collective::AllReduce if rank > 0 => {
                // Rank 0 has been checked already, and an equal expression is as complete as its
                // own.
                return if value == self.output(0, index) {
                    Ok(())
                } else {
                    Err(OutputError::DiffersFrom(0))
                };
            }
            Collective::AllReduce | Collective::Reduce => {
                return self.values.check_complete_sum(value, |_| index);
            }
            Collective::ReduceScatter => {
                return self.values.check_complete_sum(value, |_| rank * parts + part);
            }
            Collective::AllGather | Collective::Gather => self.values.leaf(share, part),
            Collective::Broadcast => self.values.leaf(root, part),
            Collective::Scatter => self.values.leaf(root, rank * parts + part),
            Collective::AllToAll => self.values.leaf(share, rank * parts + part),
            Collective::Barrier => return Ok(()),
            Collective::Scan => return self.values.check_prefix_sum(value, rank + 1, part),
            Collective::ExScan => return self.values.check_prefix_sum(value, rank, part),
        };
        if value == moved { Ok(()) } else { Err(OutputError::WrongInput) }
    }

    /// Returns the rank and the chunk of the input that an output lacks, if it is one that tells.
    pub(super) fn lacking(&self, rank: Rank, index: usize, error: OutputError) -> Option<(Rank, usize)> {
        let (parts, root) = (self.schedule.chunks_per_share, self.schedule.spec.root);
        let (share, part) = (index / parts, index % parts);
        let own_part = rank * parts + part;
        match (error, self.schedule.collective) {
            (OutputError::MissingInput(source), Collective::ReduceScatter) => Some((source, own_part)),
            (OutputError::MissingInput(source), _) => Some((source, index)),
            (OutputError::Missing | OutputError::WrongInput, collective) => match collective {
                Collective::AllGather | Collective::Gather => Some((share, part)),
                Collective::Broadcast => Some((root, part)),
                Collective::Scatter => Some((root, own_part)),
                Collective::AllToAll => Some((share, own_part)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Checks that every rank has heard, directly or through others, from every other.
    fn check_barrier(&self) -> Result<(), Violation> {
        let ranks = self.schedule.spec.ranks;
        for rank in 0..ranks {
            for other in (0..ranks).filter(|&other| other != rank) {
                let mut pairs = self.numbering.of(rank).flat_map(|own_program| {
                    self.numbering.of(other).map(move |lane_program| (own_program, lane_program))
                });
                if !pairs
                    .any(|(own_program, lane_program)| self.clocks.has_heard_from(own_program, lane_program))
                {
                    return Err(Violation::Barrier { rank, missing: other });
                }
            }
        }
        Ok(())
    }
}
