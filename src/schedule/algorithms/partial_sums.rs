//! Tracks the places of partial sums.

use crate::schedule::{Chunk, scratch};

/// The places of a rank's partial sums.
///
/// A sum starts as the rank's input. It moves to writable memory when the first operand arrives,
/// and ends when it is sent.
pub(super) struct PartialSums {
    location: Vec<Chunk>,
    slots: Vec<Option<usize>>,
    free: Vec<usize>,
    used: usize,
    own: usize,
    result: Chunk,
}

impl PartialSums {
    /// Sums that start as `inputs`; number `own_sum` is this rank's, and grows in `result`.
    pub(super) fn new(inputs: Vec<Chunk>, own_sum: usize, result: Chunk) -> Self {
        Self {
            slots: vec![None; inputs.len()],
            location: inputs,
            free: Vec::new(),
            used: 0,
            own: own_sum,
            result,
        }
    }

    /// Returns the place of a sum that is sent now, and ends it.
    pub(super) fn take(&mut self, sum: usize) -> Chunk {
        self.free.extend(self.slots[sum].take());
        self.location[sum]
    }

    /// Returns the place of a sum, and its place after an operand is added.
    pub(super) fn add(&mut self, sum: usize) -> (Chunk, Chunk) {
        let former = self.location[sum];
        if sum == self.own {
            self.location[sum] = self.result;
        } else if self.slots[sum].is_none() {
            let slot = self.free.pop().unwrap_or(self.used);
            self.used = self.used.max(slot + 1);
            self.slots[sum] = Some(slot);
            self.location[sum] = scratch(slot);
        }
        (former, self.location[sum])
    }

    /// Scratch chunks needed so far.
    pub(super) fn scratch_chunks(&self) -> usize {
        self.used
    }
}
