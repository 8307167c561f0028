//! Micro-sequences: parts of the sequences of a micro-batch that pass one after the other.

use super::Pass;
use crate::batch::Batch;
use crate::step_plan::Visit;

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
        self.micro_sequences = count;
    }

    /// Returns the number of micro-sequences per micro-batch.
    pub fn micro_sequences(&self) -> usize {
        self.micro_sequences
    }

    /// Returns the index of the current micro-sequence in its micro-batch.
    pub fn micro_sequence(&self) -> usize {
        self.place.micro_batch % self.micro_sequences
    }

    /// Returns the index of the micro-batch whose micro-sequence is computed.
    pub(crate) fn whole_micro_batch(&self) -> usize {
        self.place.micro_batch / self.micro_sequences
    }

    /// Returns the data of all micro-sequences of the current micro-batch.
    ///
    /// # Panics
    /// Panics if it was not set.
    pub fn micro_sequence_batches(&self) -> impl Iterator<Item = Batch> + '_ {
        let first = self.place.micro_batch - self.micro_sequence();
        (first..first + self.micro_sequences).map(|part| self.batch_of(part))
    }

    /// Returns the micro-batch that a visit computes as number `number`.
    pub(super) fn micro_batch_at(&self, visit: &Visit, number: usize) -> usize {
        match visit.work.is_backward() && self.micro_sequences > 1 {
            true => visit.micro_batches.end - 1 - number,
            false => visit.micro_batches.start + number,
        }
    }
}
