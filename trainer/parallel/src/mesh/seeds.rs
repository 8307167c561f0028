//! Seeds as a function of step and position. They have no state, so any pass can be repeated.

use super::Coordinates;
use unisono_nn::pass::Seeds;
use unisono_nn::random::hash_numbers;

/// Purpose of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Forward and backward for a weight update.
    Training,
    /// Forward on validation data.
    Validation,
    /// Forward on test data.
    Test,
}

/// Source of the [`Seeds`] of one rank.
#[derive(Clone, Copy, Debug)]
pub struct SeedSource {
    seed: u64,
    coordinates: Coordinates,
}

impl SeedSource {
    /// Creates the source from the run's seed and the rank's coordinates.
    pub fn new(seed: u64, coordinates: Coordinates) -> Self {
        Self { seed, coordinates }
    }

    /// Returns the seeds of micro-batch `micro_batch` of step `step`.
    ///
    /// The shared seed depends on the tokens of a tensor parallel group. It is equal on all
    /// pipeline stages: random operations have names, so that layers differ wherever they run. The
    /// per-rank seed adds the tensor rank. Ranks that share sequences have different seeds: a
    /// dropout mask belongs to a rank's chunk, so another division of sequences gives other masks.
    pub fn seeds_for(&self, phase: Phase, step: u64, micro_batch: u64) -> Seeds {
        let Coordinates { tensor, sequence_data, batch_data, .. } = self.coordinates;
        let place = [sequence_data, batch_data].map(|coordinate| coordinate as u64);
        let shared = hash_numbers(&[self.seed, phase as u64, step, micro_batch, place[0], place[1], 0]);
        Seeds { shared, per_rank: hash_numbers(&[shared, tensor as u64]) }
    }
}
