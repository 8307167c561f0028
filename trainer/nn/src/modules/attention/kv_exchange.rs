//! Keys and values of sequences whose parts are on several ranks, or pass one after the other.

use crate::allocator::F32Vec;
use crate::error::Result;
use crate::modules::attention::key_order::KeyOrder;
use crate::ops::host::attention::tile::QkvColumns;
use crate::pass::EarlierKv;
use crate::pass::Pass;
use std::ops::Range;
use unisono::{Communicator, Sum};

/// Keys and values of one sequence at a time, apart from the queries.
pub(super) struct KvExchange {
    /// Ranks with chunks of the same sequences; `None` if they are whole.
    group: Option<Communicator>,
    /// Keys and values of this rank's chunk.
    own: F32Vec,
    /// Those of all ranks. Empty without a group, or if they are kept with the earlier ones.
    whole: F32Vec,
    /// Gradients of all ranks' keys and values, in backward. Empty if they are kept.
    slopes: F32Vec,
    order: KeyOrder,
    /// Keys and values of all micro-sequences so far; `None` if there is one.
    earlier: Option<EarlierKv>,
    columns: QkvColumns,
    site: u64,
}

impl KvExchange {
    /// Creates the exchange for a pass over `sequences` sequences; `None` if queries, keys and
    /// values are together.
    ///
    /// # Errors
    /// Fails for a pass on a GPU.
    pub(super) fn for_pass(
        pass: &mut Pass<'_>,
        site: u64,
        columns: QkvColumns,
        sequences: usize,
    ) -> Result<Option<Self>> {
        let group = pass.sequence_group().cloned();
        if pass.micro_sequences() > 1 {
            pass.expect_host("attention between micro-sequences (data.micro_sequences)")?;
        } else if group.is_some() {
            pass.expect_host("attention between chunks of sequences (mesh.sequence_data)")?;
        } else {
            return Ok(None);
        }
        let count = pass.sequence() * 2 * columns.keys;
        let all = count * group.as_ref().map_or(1, Communicator::size);
        let earlier = (pass.micro_sequences() > 1).then(|| {
            let kept = pass.take_earlier_kv(site);
            kept.unwrap_or_else(|| EarlierKv::new(pass, sequences, all))
        });
        let whole = pass.floats(if earlier.is_some() { 0 } else { all });
        let (own, slopes, order) = (pass.floats(count), pass.floats(0), KeyOrder::new(pass, all));
        Ok(Some(Self { group, own, whole, slopes, order, earlier, columns, site }))
    }

    /// Returns the range of this rank's chunk of sequence `number` among all its chunks.
    fn chunk_range(&self, number: usize) -> Range<usize> {
        let count = self.own.len() / (2 * self.columns.keys) * self.columns.all();
        number * count..(number + 1) * count
    }

    /// Returns the keys | values of sequence `number`, up to the last row of this pass. `input` has
    /// the queries | keys | values of this rank's chunks.
    pub(super) fn keys(&mut self, pass: &Pass<'_>, number: usize, input: &[f32]) -> Result<&[f32]> {
        let index = pass.micro_sequence();
        let known = self.earlier.as_ref().is_some_and(|earlier| earlier.has(index));
        if !known {
            self.gather(pass, number, input)?;
        }
        Ok(match &self.earlier {
            Some(earlier) => earlier.keys(number, index),
            None => &self.whole,
        })
    }

    fn gather(&mut self, pass: &Pass<'_>, number: usize, input: &[f32]) -> Result<()> {
        let QkvColumns { queries, keys } = self.columns;
        let rows = input[self.chunk_range(number)].chunks_exact(self.columns.all());
        let own = match (&self.group, &mut self.earlier) {
            (None, Some(earlier)) => earlier.part_mut(number, pass.micro_sequence()),
            _ => &mut self.own,
        };
        for (own, row) in own.chunks_exact_mut(2 * keys).zip(rows) {
            own.copy_from_slice(&row[queries..]);
        }
        let Some(group) = &self.group else { return Ok(()) };
        let whole = match &mut self.earlier {
            Some(earlier) => earlier.part_mut(number, pass.micro_sequence()),
            None => &mut self.whole,
        };
        pass.timed_wait("keys and values", || group.all_gather(&self.own, whole))?;
        self.order.by_position(whole);
        Ok(())
    }

    /// Returns the keys | values of sequence `number` as [`KvExchange::keys`] does, and the memory
    /// of their gradients. It has the sums of the later micro-sequences.
    pub(super) fn keys_and_slopes(
        &mut self,
        pass: &Pass<'_>,
        number: usize,
        input: &[f32],
    ) -> Result<(&[f32], &mut [f32])> {
        self.keys(pass, number, input)?;
        let Some(earlier) = &mut self.earlier else {
            if self.slopes.is_empty() {
                self.slopes = pass.floats(self.whole.len());
            }
            self.slopes.fill(0.0);
            return Ok((&self.whole, &mut self.slopes));
        };
        Ok(earlier.keys_and_slopes(pass, number))
    }

    /// Writes the sum over all ranks of the gradients of keys | values of sequence `number` to this
    /// rank's rows of `result`.
    pub(super) fn scatter(&mut self, pass: &Pass<'_>, number: usize, result: &mut [f32]) -> Result<()> {
        let slopes = match &self.earlier {
            Some(earlier) => earlier.part_slopes(number, pass.micro_sequence()),
            None => &self.slopes,
        };
        let own: &[f32] = match &self.group {
            None => slopes,
            Some(group) => {
                let slopes = self.order.by_rank(slopes);
                pass.timed_wait("gradients of keys and values", || {
                    group.reduce_scatter(slopes, &mut self.own, Sum)
                })?;
                &self.own
            }
        };
        let QkvColumns { queries, keys } = self.columns;
        let rows = result[self.chunk_range(number)].chunks_exact_mut(self.columns.all());
        rows.zip(own.chunks_exact(2 * keys)).for_each(|(row, own)| row[queries..].copy_from_slice(own));
        Ok(())
    }

    /// Ends a forward: keeps the keys and values if a later micro-sequence or backward needs them.
    pub(super) fn end_forward(self, pass: &mut Pass<'_>) {
        let index = pass.micro_sequence();
        let Some(mut earlier) = self.earlier else { return };
        earlier.complete(index);
        if pass.keeps() || index + 1 < pass.micro_sequences() {
            pass.keep_earlier_kv(self.site, earlier);
        }
    }

    /// Ends a backward: the first micro-sequence is the last that needs the keys and values.
    pub(super) fn end_backward(self, pass: &mut Pass<'_>) {
        if let Some(earlier) = self.earlier.filter(|_| pass.micro_sequence() > 0) {
            pass.keep_earlier_kv(self.site, earlier);
        }
    }
}
