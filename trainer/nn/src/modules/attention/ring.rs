//! Ring attention: keys and values go round the ranks that share sequences.
//!
//! Source: Liu, Zaharia, Abbeel, "Ring attention with blockwise transformers for near-infinite
//! context", ICLR 2024; streaming sums as in Dao et al., "FlashAttention", 2022.

use super::Attention;
use super::shared_sequence::SharedSequence;
use crate::error::Result;
use crate::ops::{AttentionShape, Values, ValuesMut};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::{MessageInfo, Work};

/// Tags of the messages between neighbors.
const KEYS_TAG: u64 = 0;
const GRADIENTS_TAG: u64 = 1;

struct Saved {
    input: Tensor,
    output: Tensor,
    log_sums: Tensor,
}

/// Message to the next rank of the ring, and the same from the rank before.
struct Hop {
    sent: Work<Tensor>,
    received: Work<(Tensor, MessageInfo)>,
}

impl Hop {
    fn start(shared: &SharedSequence, value: Tensor, room: Tensor, tag: u64) -> Self {
        let [next, previous] = shared.ring_neighbors();
        let received = shared.ranks.irecv(room, previous, tag);
        Self { received, sent: shared.ranks.isend(value, next, tag) }
    }

    /// Waits, and returns what was received and what was sent.
    fn wait(self, pass: &Pass<'_>, name: &'static str) -> Result<(Tensor, Tensor)> {
        pass.timed_wait(name, || Ok((self.received.wait()?.0, self.sent.wait()?)))
    }
}

impl Attention {
    /// Computes attention to the keys of all groups. The next block of keys and values is under way
    /// while one is used. A rank sends N−1 blocks in a ring of N groups.
    pub(super) fn forward_ring(
        &self,
        pass: &mut Pass<'_>,
        input: Tensor,
        shared: &SharedSequence,
    ) -> Result<Tensor> {
        let rows = input.rows();
        let mut output = Tensor::zeros(pass.memory(), rows, self.width());
        let mut log_sums = pass.tensor(rows, self.heads);
        log_sums.data_mut().fill(f32::NEG_INFINITY);
        let [mut found, mut sums] = [self.width(), self.heads].map(|columns| pass.tensor(rows, columns));
        self.each_block(pass, &input, shared, |pass, visible, block| {
            let shape = self.block_shape(shared, visible);
            each_sequence(shared, block, |only, keys| {
                let (to, sums) = (found.values_mut(), sums.values_mut());
                pass.ops().attention(&shape, only, input.values(), Some(keys), to, sums)
            })?;
            let from = [found.values(), sums.values()];
            pass.ops().merge_attention(&shape, from, output.values_mut(), log_sums.values_mut())
        })?;
        if pass.keeps() {
            pass.save(Saved { input, output: output.copy()?, log_sums });
        }
        Ok(output)
    }

    /// Computes the gradient of the input. Keys and values go round as in forward, and so do their
    /// gradients, which need one more hop to return to their rank.
    pub(super) fn backward_ring(
        &self,
        pass: &mut Pass<'_>,
        gradient: &Tensor,
        shared: &SharedSequence,
    ) -> Result<Tensor> {
        let Saved { input, output, log_sums } = pass.restore();
        let rows = input.rows();
        let mut result = Tensor::zeros(pass.memory(), rows, input.columns());
        let mut dots = pass.tensor(rows, self.heads);
        let own = vec![shared.group_length(); shared.group_length()];
        pass.ops().attention_dots(
            &self.block_shape(shared, &own),
            [output.values(), gradient.values()],
            dots.values_mut(),
        )?;
        drop(output);
        let mut under_way: Option<Hop> = None;
        self.each_block(pass, &input, shared, |pass, visible, block| {
            let mut of_block = Tensor::zeros(pass.memory(), block.rows(), block.columns());
            let shape = self.block_shape(shared, visible);
            let per_sequence = block.data().len() / shared.sequences;
            each_sequence(shared, block, |only, keys| {
                let range = only.start * per_sequence..only.end * per_sequence;
                let from = [input.values(), log_sums.values(), gradient.values()];
                let extra = [Some(keys), Some(dots.values())];
                let of_keys = Some(ValuesMut::Host(&mut of_block.data_mut()[range]));
                pass.ops().attention_backward(&shape, only, from, extra, result.values_mut(), of_keys)
            })?;
            let room = match under_way.take() {
                Some(hop) => {
                    let (earlier, sent) = hop.wait(pass, "gradients of keys and values")?;
                    of_block.add(&earlier)?;
                    drop(earlier);
                    sent
                }
                None => pass.tensor(block.rows(), block.columns()),
            };
            under_way = Some(Hop::start(shared, of_block, room, GRADIENTS_TAG));
            Ok(())
        })?;
        let last = under_way.expect("there is a block");
        let (own, _) = last.wait(pass, "gradients of keys and values")?;
        for (row, own) in (0..rows).map(|row| (row, own.row(row))) {
            result.row_mut(row)[self.width()..].copy_from_slice(own);
        }
        Ok(result)
    }

    /// Calls `body` for each group, from this rank's group backwards. It gets the keys | values of
    /// the group, and the number of them that each row attends to.
    pub(super) fn each_block(
        &self,
        pass: &mut Pass<'_>,
        input: &Tensor,
        shared: &SharedSequence,
        mut body: impl FnMut(&mut Pass<'_>, &[usize], &Tensor) -> Result<()>,
    ) -> Result<()> {
        let (group, count) = (shared.own_group(), shared.ring_size());
        let columns = self.columns();
        let mut block = pass.tensor(input.rows(), 2 * columns.keys);
        for row in 0..input.rows() {
            block.row_mut(row).copy_from_slice(&input.row(row)[columns.queries..]);
        }
        let mut rooms =
            vec![pass.tensor(block.rows(), block.columns()), pass.tensor(block.rows(), block.columns())];
        for hop in 0..count {
            let next = (hop + 1 < count).then(|| {
                let (mut copy, room) = (rooms.pop().expect("a room"), rooms.pop().expect("a room"));
                copy.data_mut().copy_from_slice(block.data());
                Hop::start(shared, copy, room, KEYS_TAG)
            });
            let visible = shared.visible(self, (group + count - hop) % count);
            body(pass, &visible, &block)?;
            if let Some(next) = next {
                let (received, sent) = next.wait(pass, "keys and values")?;
                rooms.extend([sent, std::mem::replace(&mut block, received)]);
            }
        }
        Ok(())
    }

    /// Returns the shape for a block of keys, of which each row attends to `visible`. No row
    /// attends to more than the keys of one group at once.
    fn block_shape<'v>(&self, shared: &SharedSequence, visible: &'v [usize]) -> AttentionShape<'v> {
        let workspace = Self::workspace_len(shared.group_length()) / 2;
        AttentionShape { workspace, ..self.shape_of(visible) }
    }
}

/// Calls `body` with the number of each sequence and its keys | values in a block.
fn each_sequence(
    shared: &SharedSequence,
    block: &Tensor,
    mut body: impl FnMut(std::ops::Range<usize>, Values<'_>) -> Result<()>,
) -> Result<()> {
    let keys = block.data().chunks_exact(block.data().len() / shared.sequences);
    keys.enumerate().try_for_each(|(number, keys)| body(number..number + 1, Values::Host(keys)))
}
