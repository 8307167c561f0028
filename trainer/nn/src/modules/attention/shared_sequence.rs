//! Ranks that share sequences: a ring of groups of neighbors. The members of a group exchange their
//! positions for heads, and keys and values go round the ring.
//!
//! Source: Fang, Zhao, "USP: a unified sequence parallelism approach for long context generative
//! AI", 2024. With groups of one rank it is ring attention, and with one group Ulysses.

use super::head_exchange::{HeadExchange, Side};
use super::{Attention, Saved, sequence_count};
use crate::error::Result;
use crate::pass::Pass;
use crate::placement::SequenceChunk;
use crate::tensor::Tensor;
use std::ops::Range;
use unisono::Communicator;

/// Division of sequences over ranks.
pub(super) struct SharedSequence {
    pub(super) ranks: Communicator,
    /// Number of neighbors that exchange heads.
    pub(super) group_size: usize,
    /// Number of sequences of the micro-batch.
    pub(super) sequences: usize,
    /// Rows of a sequence on each rank.
    pub(super) length: usize,
    chunk: SequenceChunk,
}

impl SharedSequence {
    /// Returns the division of the sequences of a pass with `rows` rows. `None` if ranks do not
    /// share them, or gather all keys and values.
    pub(super) fn for_pass(pass: &Pass<'_>, rows: usize) -> Option<Self> {
        let (ranks, group_size) = (pass.sequence_group()?.clone(), pass.head_group_size()?);
        let (sequences, length) = (sequence_count(pass, rows), pass.sequence());
        Some(Self { ranks, group_size, sequences, length, chunk: pass.chunk() })
    }

    /// Returns the number of groups in the ring.
    pub(super) fn ring_size(&self) -> usize {
        self.ranks.size() / self.group_size
    }

    /// Returns the number of this rank's group in the ring.
    pub(super) fn own_group(&self) -> usize {
        self.ranks.rank() / self.group_size
    }

    /// Returns the ranks of a group.
    pub(super) fn members(&self, group: usize) -> Range<usize> {
        group * self.group_size..(group + 1) * self.group_size
    }

    /// Returns the rows of a sequence on all ranks of a group.
    pub(super) fn group_length(&self) -> usize {
        self.group_size * self.length
    }

    /// Returns the next and the previous rank of this rank's ring.
    pub(super) fn ring_neighbors(&self) -> [usize; 2] {
        let (rank, count) = (self.ranks.rank(), self.ranks.size());
        [(rank + self.group_size) % count, (rank + count - self.group_size) % count]
    }

    /// Returns the positions of a rank's rows of a sequence, ascending.
    pub(super) fn positions_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.chunk.positions_of(rank, self.length)
    }

    /// Returns the positions of a group's rows of a sequence, ascending.
    pub(super) fn positions(&self, group: usize) -> Vec<usize> {
        let mut all: Vec<usize> = self.members(group).flat_map(|rank| self.positions_of(rank)).collect();
        all.sort_unstable();
        all
    }

    /// Returns how many keys of a group each row of this rank's group attends to: those that are
    /// not later.
    pub(super) fn visible(&self, attention: &Attention, group: usize) -> Vec<usize> {
        if !attention.is_causal {
            return vec![self.group_length(); self.group_length()];
        }
        let (own, keys) = (self.positions(self.own_group()), self.positions(group));
        own.into_iter().map(|own| keys.partition_point(|&key| key <= own)).collect()
    }
}

impl Attention {
    /// Computes attention of ranks that share sequences. Exchanges within a group bring the rows of
    /// its ranks here, for some of the heads, and the results back.
    pub(super) fn forward_shared(
        &self,
        pass: &mut Pass<'_>,
        input: Tensor,
        shared: &SharedSequence,
    ) -> Result<Tensor> {
        pass.expect_host("attention between ranks that share sequences (context.kv_transfer)")?;
        if shared.group_size == 1 {
            return self.forward_ring(pass, input, shared);
        }
        let exchange = HeadExchange::new(*self, shared);
        let local = exchange.local();
        let gathered = exchange.to_heads(pass, Side::Input, &input)?;
        drop(input);
        let output = match exchange.has_ring() {
            true => local.forward_ring(pass, gathered, shared)?,
            false => local.forward_whole(pass, gathered, shared)?,
        };
        exchange.to_rows(pass, Side::Output, &output)
    }

    /// Computes the gradient of the input, with exchanges as in forward.
    pub(super) fn backward_shared(
        &self,
        pass: &mut Pass<'_>,
        gradient: &Tensor,
        shared: &SharedSequence,
    ) -> Result<Tensor> {
        if shared.group_size == 1 {
            return self.backward_ring(pass, gradient, shared);
        }
        let exchange = HeadExchange::new(*self, shared);
        let local = exchange.local();
        let gathered = exchange.to_heads(pass, Side::Output, gradient)?;
        let found = match exchange.has_ring() {
            true => local.backward_ring(pass, &gathered, shared)?,
            false => local.backward_whole(pass, &gathered, shared)?,
        };
        exchange.to_rows(pass, Side::Input, &found)
    }

    /// Computes attention over the whole sequences that one group has.
    fn forward_whole(&self, pass: &mut Pass<'_>, input: Tensor, shared: &SharedSequence) -> Result<Tensor> {
        let [mut output, mut log_sums] =
            [self.width(), self.heads].map(|columns| pass.tensor(input.rows(), columns));
        if self.heads > 0 {
            let visible = shared.visible(self, shared.own_group());
            let (shape, to, sums) = (self.shape_of(&visible), output.values_mut(), log_sums.values_mut());
            pass.ops().attention(&shape, 0..shared.sequences, input.values(), None, to, sums)?;
        }
        pass.save(Saved { input, log_sums });
        Ok(output)
    }

    fn backward_whole(
        &self,
        pass: &mut Pass<'_>,
        gradient: &Tensor,
        shared: &SharedSequence,
    ) -> Result<Tensor> {
        let Saved { input, log_sums } = pass.restore();
        let mut result = Tensor::zeros(pass.memory(), input.rows(), input.columns());
        if self.heads > 0 {
            let visible = shared.visible(self, shared.own_group());
            let (shape, to) = (self.shape_of(&visible), result.values_mut());
            let from = [input.values(), log_sums.values(), gradient.values()];
            pass.ops().attention_backward(&shape, 0..shared.sequences, from, [None; 2], to, None)?;
        }
        Ok(result)
    }
}
