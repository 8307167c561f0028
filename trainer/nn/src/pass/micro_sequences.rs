//! Micro-sequences: parts of the sequences of a micro-batch that pass one after the other.

use super::Pass;

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

    /// Returns the index of the micro-batch whose micro-sequence is computed, counted in
    /// micro-batches of whole sequences.
    pub fn whole_micro_batch(&self) -> usize {
        self.place.micro_batch / self.micro_sequences
    }
}
