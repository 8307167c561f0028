//! Micro-sequences: parts of the sequences of a micro-batch that pass one after the other.

use super::{EarlierKv, Pass};
use crate::batch::Batch;
use crate::step_plan::Visit;
use std::collections::HashMap;

/// Micro-sequences of a pass, and the keys and values that they share.
pub(super) struct MicroSequences {
    /// Number per micro-batch.
    pub(super) count: usize,
    /// By micro-batch and attention.
    kept: HashMap<(usize, u64), EarlierKv>,
}

impl Default for MicroSequences {
    fn default() -> Self {
        Self { count: 1, kept: HashMap::new() }
    }
}

impl MicroSequences {
    /// Returns true if no keys and values are kept for later micro-sequences.
    pub(super) fn is_complete(&self) -> bool {
        self.kept.is_empty()
    }
}

impl Pass<'_> {
    /// Divides the sequences of each micro-batch into `count` micro-sequences (Li et al.,
    /// "TeraPipe", ICML 2021). They take the place of micro-batches: those of the first micro-batch
    /// come first.
    ///
    /// They must go forward in order and back in reverse order: attention keeps the keys and values
    /// of the earlier ones, and sums the gradients of the later ones.
    ///
    /// # Panics
    /// Panics if the pass has no whole number of micro-batches.
    pub fn set_micro_sequences(&mut self, count: usize) {
        assert!(count > 0 && self.count().is_multiple_of(count), "{} of {count} each", self.count());
        self.micro_sequences.count = count;
    }

    /// Returns the number of micro-sequences per micro-batch.
    pub fn micro_sequences(&self) -> usize {
        self.micro_sequences.count
    }

    /// Returns the index of the current micro-sequence in its micro-batch.
    pub fn micro_sequence(&self) -> usize {
        self.place.micro_batch % self.micro_sequences.count
    }

    /// Returns the data of all micro-sequences of the current micro-batch.
    ///
    /// # Panics
    /// Panics if it was not set.
    pub fn micro_sequence_batches(&self) -> impl Iterator<Item = Batch> + '_ {
        let first = self.place.micro_batch - self.micro_sequence();
        (first..first + self.micro_sequences.count).map(|part| self.batch_of(part))
    }

    /// Returns the micro-batch that a visit computes as number `number`.
    pub(super) fn micro_batch_at(&self, visit: &Visit, number: usize) -> usize {
        match visit.work.is_backward() && self.micro_sequences.count > 1 {
            true => visit.micro_batches.end - 1 - number,
            false => visit.micro_batches.start + number,
        }
    }

    /// Takes the keys and values that the attention `site` keeps for the current micro-batch.
    pub(crate) fn take_earlier_kv(&mut self, site: u64) -> Option<EarlierKv> {
        self.micro_sequences.kept.remove(&(self.place.micro_batch / self.micro_sequences.count, site))
    }

    /// Keeps keys and values for the attention `site`, until the next micro-sequence of the current
    /// micro-batch takes them.
    pub(crate) fn keep_earlier_kv(&mut self, site: u64, earlier: EarlierKv) {
        self.micro_sequences
            .kept
            .insert((self.place.micro_batch / self.micro_sequences.count, site), earlier);
    }
}
