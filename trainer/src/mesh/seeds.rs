//! Seeds as a function of where and when: no history, so that any pass of any step can be repeated.

use super::Coordinates;
use crate::pass::Seeds;
use crate::random::hash_numbers;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Forward and backward, to change the weights.
    Training,
    /// Forward, to see how well it goes.
    Validation,
    /// Forward, for the last judgement.
    Test,
}

/// One rank's source of [`Seeds`].
#[derive(Clone, Copy, Debug)]
pub struct SeedSource {
    seed: u64,
    at: Coordinates,
}

impl SeedSource {
    /// Of the run's seed, for the rank that stands at `at`.
    pub fn new(seed: u64, at: Coordinates) -> Self {
        Self { seed, at }
    }

    /// The seeds of micro-batch `micro_batch` of step `step`.
    ///
    /// The shared one depends on what a tensor parallel group has in common: its tokens and its layers. The split one
    /// adds the tensor rank. Ranks that share sequences have seeds of their own: a mask belongs to a rank's chunk, not to a place in
    /// the whole sequence, and is another one if sequences are cut otherwise.
    pub fn seeds_for(&self, phase: Phase, step: u64, micro_batch: u64) -> Seeds {
        let Coordinates { tensor, sequence_data, batch_data, pipeline } = self.at;
        let place = [sequence_data, batch_data, pipeline].map(|coordinate| coordinate as u64);
        let shared =
            hash_numbers(&[self.seed, phase as u64, step, micro_batch, place[0], place[1], place[2]]);
        Seeds { shared, per_rank: hash_numbers(&[shared, tensor as u64]) }
    }
}
