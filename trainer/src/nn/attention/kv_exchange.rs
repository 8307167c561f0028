//! Exchange of keys and values of sequences whose chunks are on several ranks.

use crate::allocator::F32Vec;
use crate::error::Result;
use crate::pass::Pass;
use unisono::{Communicator, Sum};

/// Keys and values of one whole sequence, of which this rank has a chunk.
pub(super) struct KvExchange {
    group: Communicator,
    /// Keys and values of this rank's chunk.
    own: F32Vec,
    whole: F32Vec,
    /// Number of columns of all queries, which equals that of all keys.
    width: usize,
}

impl KvExchange {
    /// Creates the exchange for a pass; `None` if sequences are whole.
    pub(super) fn for_pass(pass: &Pass<'_>, width: usize) -> Option<Self> {
        let ranks = pass.sequence_group()?.clone();
        let count = pass.sequence() * 2 * width;
        let (own, whole) = (pass.floats(count), pass.floats(count * ranks.size()));
        Some(Self { group: ranks, own, whole, width })
    }

    /// Returns the number of elements of a whole sequence.
    pub(super) fn count(&self) -> usize {
        self.whole.len()
    }

    /// Gathers the keys | values of sequence `number`. `input` has the queries | keys | values of
    /// this rank's chunks.
    pub(super) fn gather(&mut self, pass: &Pass<'_>, number: usize, input: &[f32]) -> Result<&[f32]> {
        let (width, count) = (self.width, self.own.len() / 2 * 3);
        let rows = input[number * count..][..count].chunks_exact(3 * width);
        for (own, row) in self.own.chunks_exact_mut(2 * width).zip(rows) {
            own.copy_from_slice(&row[width..]);
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
        let (width, count) = (self.width, self.own.len() / 2 * 3);
        let rows = result[number * count..][..count].chunks_exact_mut(3 * width);
        let own = self.own.chunks_exact(2 * width);
        rows.zip(own).for_each(|(row, own)| row[width..].copy_from_slice(own));
        Ok(())
    }
}
