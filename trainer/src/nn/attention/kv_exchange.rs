//! Exchange of keys and values of sequences whose chunks are on several ranks.

use crate::allocator::F32Vec;
use crate::error::Result;
use crate::nn::attention::tile::QkvColumns;
use crate::pass::Pass;
use std::ops::Range;
use unisono::{Communicator, Sum};

/// Keys and values of one whole sequence, of which this rank has a chunk.
pub(super) struct KvExchange {
    group: Communicator,
    /// Keys and values of this rank's chunk.
    own: F32Vec,
    whole: F32Vec,
    columns: QkvColumns,
}

impl KvExchange {
    /// Creates the exchange for a pass; `None` if sequences are whole.
    pub(super) fn for_pass(pass: &Pass<'_>, columns: QkvColumns) -> Option<Self> {
        let ranks = pass.sequence_group()?.clone();
        let count = pass.sequence() * 2 * columns.keys;
        let (own, whole) = (pass.floats(count), pass.floats(count * ranks.size()));
        Some(Self { group: ranks, own, whole, columns })
    }

    /// Returns the number of elements of a whole sequence.
    pub(super) fn count(&self) -> usize {
        self.whole.len()
    }

    /// Returns the range of this rank's chunk of sequence `number` among all its chunks.
    fn chunk_range(&self, number: usize) -> Range<usize> {
        let count = self.own.len() / (2 * self.columns.keys) * self.columns.all();
        number * count..(number + 1) * count
    }

    /// Gathers the keys | values of sequence `number`. `input` has the queries | keys | values of
    /// this rank's chunks.
    pub(super) fn gather(&mut self, pass: &Pass<'_>, number: usize, input: &[f32]) -> Result<&[f32]> {
        let QkvColumns { queries, keys } = self.columns;
        let rows = input[self.chunk_range(number)].chunks_exact(self.columns.all());
        for (own, row) in self.own.chunks_exact_mut(2 * keys).zip(rows) {
            own.copy_from_slice(&row[queries..]);
        }
        pass.timed_wait("keys and values", || self.group.all_gather(&self.own, &mut self.whole))?;
        Ok(&self.whole)
    }

    /// Writes the sum over all ranks of the gradients of keys | values of sequence `number` to this
    /// rank's rows of `result`.
    pub(super) fn scatter(
        &mut self,
        pass: &Pass<'_>,
        number: usize,
        slopes: &[f32],
        result: &mut [f32],
    ) -> Result<()> {
        pass.timed_wait("gradients of keys and values", || {
            self.group.reduce_scatter(slopes, &mut self.own, Sum)
        })?;
        let QkvColumns { queries, keys } = self.columns;
        let rows = result[self.chunk_range(number)].chunks_exact_mut(self.columns.all());
        let own = self.own.chunks_exact(2 * keys);
        rows.zip(own).for_each(|(row, own)| row[queries..].copy_from_slice(own));
        Ok(())
    }
}
