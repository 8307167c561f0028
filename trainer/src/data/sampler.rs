//! Assignment of samples to ranks and steps.

use super::Permutation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use unisono_nn::error::{Error, Result};
use unisono_nn::random::hash_numbers;

/// Treatment of samples at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LastBatch {
    /// Skips them. The order of the next epoch puts other samples at the end.
    #[default]
    Drop,
    /// Fills the batch from the start of the same epoch.
    Pad,
}

/// Progress of the whole job in the data, for any number of ranks. A checkpoint keeps it for its
/// [`Sampler`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Number of complete epochs.
    pub epoch: u64,
    /// Samples of this epoch used by all ranks together.
    pub sample: u64,
}

/// Iterator over batches of sample numbers. The order is a function of seed and epoch.
///
/// A new sampler returns whole global batches. [`Sampler::with_shard`] selects a rank's part of
/// each. So every step uses the same samples on any number of ranks.
#[derive(Clone, Debug)]
pub struct Sampler {
    samples: u64,
    batch: u64,
    shard: Range<u64>,
    last_batch: LastBatch,
    seed: Option<u64>,
    order: Permutation,
    position: Position,
}

impl Sampler {
    /// Creates batches of `batch` of `samples` samples, shuffled by a seed or in order.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an epoch has no complete batch.
    pub fn new(samples: u64, batch: u64, shuffle: Option<u64>, tail: LastBatch) -> Result<Self> {
        if batch == 0 || samples == 0 || tail == LastBatch::Drop && samples < batch {
            return Err(Error::invalid(format!("{samples} samples do not make one batch of {batch}")));
        }
        let order = Permutation::new(samples, 0);
        let position = Position::default();
        let mut sampler =
            Self { samples, batch, shard: 0..batch, last_batch: tail, seed: shuffle, order, position };
        sampler.set_epoch(0);
        Ok(sampler)
    }

    /// Selects the part of rank `rank` of `ranks` of each batch. Ranks that share sequences or
    /// layers use the same part.
    ///
    /// # Errors
    /// [`Error::Invalid`] if batches do not divide by `ranks`.
    pub fn with_shard(mut self, rank: usize, ranks: usize) -> Result<Self> {
        if !self.batch.is_multiple_of(ranks as u64) || rank >= ranks {
            let what = format!("a batch of {} has no part {rank} of {ranks} equal ones", self.batch);
            return Err(Error::invalid(what));
        }
        let part = self.batch / ranks as u64;
        self.shard = part * rank as u64..part * (rank as u64 + 1);
        Ok(self)
    }

    /// Moves to the start of an epoch, which has its own order.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.position = Position { epoch, sample: 0 };
        // The order follows from the number of the epoch alone, so that a resumed run needs no
        // earlier one.
        self.order = Permutation::new(self.samples, hash_numbers(&[self.seed.unwrap_or(0), epoch]));
    }

    /// Returns the progress of the job.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Resumes at a position of a sampler with the same samples and seed, for any batch size and
    /// number of ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a position outside of these samples.
    pub fn resume(&mut self, position: Position) -> Result<()> {
        if position.sample > self.samples {
            let what = format!("sample {} of an epoch of {}", position.sample, self.samples);
            return Err(Error::invalid(format!("{what}: this position belongs to other data")));
        }
        // A new epoch begins at its first sample, so the position is set after it.
        self.set_epoch(position.epoch);
        self.position = position;
        Ok(())
    }

    /// Returns the number of batches per epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        match self.last_batch {
            LastBatch::Drop => self.samples / self.batch,
            LastBatch::Pad => self.samples.div_ceil(self.batch),
        }
    }

    /// Returns the next batch, from the next epoch if this one is complete.
    pub fn next_or_new_epoch(&mut self) -> Vec<u64> {
        if !self.has_next() {
            // A checkpoint may name the last epoch that there is.
            self.set_epoch(self.position.epoch.saturating_add(1));
        }
        self.take_next()
    }

    fn has_next(&self) -> bool {
        match self.last_batch {
            LastBatch::Drop => self.position.sample + self.batch <= self.samples,
            LastBatch::Pad => self.position.sample < self.samples,
        }
    }

    fn take_next(&mut self) -> Vec<u64> {
        let first = self.position.sample;
        // A padded batch takes samples from the start of the epoch, which ends all the same.
        self.position.sample = (first + self.batch).min(self.samples);
        self.shard.clone().map(|place| self.sample((first + place) % self.samples)).collect()
    }

    fn sample(&self, place: u64) -> u64 {
        if self.seed.is_some() { self.order.at(place) } else { place }
    }
}

/// Iterates over the remaining batches of this epoch.
impl Iterator for Sampler {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        self.has_next().then(|| self.take_next())
    }
}
