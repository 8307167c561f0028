//! Bookkeeping for sums under way.

use crate::schedule::{Block, scratch};

/// Where a rank keeps its partial sums. Each starts as its own input, moves to memory that may
/// be written when the first operand arrives, and is gone when it is sent.
pub(super) struct Partials {
    held: Vec<Block>,
    slots: Vec<Option<usize>>,
    free: Vec<usize>,
    used: usize,
    own: usize,
    result: Block,
}

impl Partials {
    /// Sums that start as `inputs`; number `own` is this rank's, and is built up in `result`.
    pub(super) fn new(inputs: Vec<Block>, own: usize, result: Block) -> Self {
        Self { slots: vec![None; inputs.len()], held: inputs, free: Vec::new(), used: 0, own, result }
    }

    /// Where the sum lies, to be sent now and forgotten.
    pub(super) fn give(&mut self, sum: usize) -> Block {
        self.free.extend(self.slots[sum].take());
        self.held[sum]
    }

    /// Where the sum lies, and where it lies once an operand is added.
    pub(super) fn add(&mut self, sum: usize) -> (Block, Block) {
        let before = self.held[sum];
        if sum == self.own {
            self.held[sum] = self.result;
        } else if self.slots[sum].is_none() {
            let slot = self.free.pop().unwrap_or(self.used);
            self.used = self.used.max(slot + 1);
            self.slots[sum] = Some(slot);
            self.held[sum] = scratch(slot);
        }
        (before, self.held[sum])
    }

    /// Scratch blocks needed so far.
    pub(super) fn scratch(&self) -> usize {
        self.used
    }
}
