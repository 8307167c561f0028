//! Bookkeeping for sums under way.

use crate::schedule::{Chunk, scratch};

/// Where a rank keeps its partial sums. Each starts as its own input, moves to memory that may
/// be written when the first operand arrives, and is gone when it is sent.
pub(super) struct PartialSums {
    location: Vec<Chunk>,
    slots: Vec<Option<usize>>,
    free: Vec<usize>,
    used: usize,
    own: usize,
    result: Chunk,
}

impl PartialSums {
    /// Sums that start as `inputs`; number `own` is this rank's, and is built up in `result`.
    pub(super) fn new(inputs: Vec<Chunk>, own: usize, result: Chunk) -> Self {
        Self { slots: vec![None; inputs.len()], location: inputs, free: Vec::new(), used: 0, own, result }
    }

    /// Where the sum lies, to be sent now and forgotten.
    pub(super) fn take(&mut self, sum: usize) -> Chunk {
        self.free.extend(self.slots[sum].take());
        self.location[sum]
    }

    /// Where the sum lies, and where it lies once an operand is added.
    pub(super) fn add(&mut self, sum: usize) -> (Chunk, Chunk) {
        let before = self.location[sum];
        if sum == self.own {
            self.location[sum] = self.result;
        } else if self.slots[sum].is_none() {
            let slot = self.free.pop().unwrap_or(self.used);
            self.used = self.used.max(slot + 1);
            self.slots[sum] = Some(slot);
            self.location[sum] = scratch(slot);
        }
        (before, self.location[sum])
    }

    /// Scratch chunks needed so far.
    pub(super) fn scratch_chunks(&self) -> usize {
        self.used
    }
}
