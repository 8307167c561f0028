//! Ring attention: keys and values go round the ranks that share sequences.
//!
//! Source: Liu, Zaharia, Abbeel, "Ring attention with blockwise transformers for near-infinite
//! context", ICLR 2024; streaming sums as in Dao et al., "FlashAttention", 2022.

use super::shared_sequence::SharedSequence;
use unisono::{MessageInfo, Work};
use unisono_nn::error::Result;
use unisono_nn::modules::{Attention, KvBlock, KvBlocks};
use unisono_nn::pass::Pass;
use unisono_nn::step_plan::Direction;
use unisono_nn::tensor::Tensor;

/// Tags of the messages between neighbors.
const KEYS_TAG: u64 = 0;
const GRADIENTS_TAG: u64 = 1;

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
        pass.waits().time(name, || Ok((self.received.wait()?.0, self.sent.wait()?)))
    }
}

/// Blocks of the keys and values of each group, from this rank's group backwards. The next block is
/// under way while one is used. A rank sends N−1 blocks in a ring of N groups.
///
/// In backward, keys and values go round as in forward, and so do their gradients, which need one
/// more hop to return to their rank.
pub(super) struct Ring {
    shared: SharedSequence,
    attention: Attention,
    /// Number of blocks that were used or are in use.
    used: usize,
    /// Keys | values of one group. `None` before the first block.
    block: Option<Tensor>,
    /// Tensors for the next hop: for a copy of the block, and for the next block.
    rooms: Vec<Tensor>,
    /// Transfer of the next block, while one is in use.
    next: Option<Hop>,
    /// Number of keys of the block that each row attends to.
    visible: Vec<usize>,
    /// Gradients of the block, in backward.
    gradients: Option<Tensor>,
    /// Transfer of the gradients of the block before.
    gradients_hop: Option<Hop>,
}

impl Ring {
    /// Creates the blocks of a ring of several groups.
    pub(super) fn new(attention: Attention, shared: SharedSequence) -> Self {
        Self {
            shared,
            attention,
            used: 0,
            block: None,
            rooms: Vec::new(),
            next: None,
            visible: Vec::new(),
            gradients: None,
            gradients_hop: None,
        }
    }

    /// Sets the next block: this rank's at first, and then the one that is under way.
    fn advance(&mut self, pass: &Pass<'_>, input: &Tensor) -> Result<()> {
        if let Some(next) = self.next.take() {
            let (received, sent) = next.wait(pass, "keys and values")?;
            // The tensors of the last hop and of the used block serve the next hop, so that hops
            // allocate nothing.
            self.rooms.push(sent);
            self.rooms.extend(self.block.replace(received));
            return Ok(());
        }
        let mut block = pass.tensor(input.rows(), self.attention.kv_width());
        for row in 0..input.rows() {
            block.row_mut(row).copy_from_slice(&input.row(row)[self.attention.width()..]);
        }
        self.rooms =
            vec![pass.tensor(block.rows(), block.columns()), pass.tensor(block.rows(), block.columns())];
        self.block = Some(block);
        Ok(())
    }
}

impl KvBlocks for Ring {
    fn merged_rows(&self) -> Option<usize> {
        Some(self.shared.group_length())
    }

    fn next_block(&mut self, pass: &Pass<'_>, input: &Tensor, way: Direction) -> Result<Option<KvBlock<'_>>> {
        let (group, count) = (self.shared.own_group(), self.shared.ring_size());
        if self.used == count {
            return Ok(None);
        }
        self.advance(pass, input)?;
        let block = self.block.as_ref().expect("it was set above");
        if self.used + 1 < count {
            let mut copy = self.rooms.pop().expect("a room");
            let room = self.rooms.pop().expect("a room");
            // A copy travels, because attention reads the block while the message is under way.
            copy.data_mut().copy_from_slice(block.data());
            self.next = Some(Hop::start(&self.shared, copy, room, KEYS_TAG));
        }
        self.visible = self.shared.visible(self.attention.is_causal(), (group + count - self.used) % count);
        self.used += 1;
        if way == Direction::Backward {
            self.gradients = Some(Tensor::zeros(pass.memory(), block.rows(), block.columns()));
        }
        Ok(Some(KvBlock {
            sequences: 0..self.shared.sequences,
            visible: &self.visible,
            // No row attends to more than the keys of one group at once.
            workspace: Attention::workspace_len(self.shared.group_length()) / 2,
            keys: Some(block.data()),
            gradients: self.gradients.as_mut().map(Tensor::data_mut),
        }))
    }

    /// Adds the gradients of the ranks before to those of this rank, and passes the sums on. They
    /// travel while the next block is used, because only its gradients wait for them.
    fn send_gradients(&mut self, pass: &Pass<'_>, _: &mut Tensor) -> Result<()> {
        let mut gradients = self.gradients.take().expect("backward had a block");
        let room = match self.gradients_hop.take() {
            Some(hop) => {
                let (earlier, sent) = hop.wait(pass, "gradients of keys and values")?;
                gradients.add(&earlier)?;
                drop(earlier);
                sent
            }
            None => pass.tensor(gradients.rows(), gradients.columns()),
        };
        self.gradients_hop = Some(Hop::start(&self.shared, gradients, room, GRADIENTS_TAG));
        Ok(())
    }

    /// Writes the gradients that return to this rank to the rows of `result`.
    fn end_backward(self: Box<Self>, pass: &mut Pass<'_>, result: &mut Tensor) -> Result<()> {
        let Self { attention, block, rooms, gradients_hop, .. } = *self;
        // Their memory is free for other uses while this rank waits.
        drop((block, rooms));
        let hop = gradients_hop.expect("there is a block");
        let (gradients, _) = hop.wait(pass, "gradients of keys and values")?;
        for row in 0..result.rows() {
            result.row_mut(row)[attention.width()..].copy_from_slice(gradients.row(row));
        }
        Ok(())
    }
}
