//! Which samples a rank sees in which step.

use super::Permutation;
use crate::error::{Error, Result};
use crate::random::hash_numbers;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What becomes of samples at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LastBatch {
    /// They wait for an epoch whose order puts them elsewhere.
    #[default]
    Drop,
    /// The batch is filled from the beginning of the same epoch.
    Pad,
}

/// How far the whole job is, whatever its number of ranks: what a checkpoint keeps of a [`Sampler`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Times that all samples have been seen.
    pub epoch: u64,
    /// Samples of this epoch that all ranks together have seen.
    pub sample: u64,
}

/// Batches of sample numbers, in an order that is a function of seed and epoch.
///
/// A new sampler gives whole global batches; [`Sampler::share`] makes one that gives a rank's slice of each. So every
/// step sees the same samples on any number of ranks.
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
    /// Batches of `batch` of `samples` samples, shuffled by a seed or in their own order.
    ///
    /// # Errors
    /// [`Error::Illegal`] if there is not one batch in an epoch.
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

    /// The part of rank `rank` of `ranks` of each batch. Ranks that share sequences or layers take the same part.
    ///
    /// # Errors
    /// [`Error::Illegal`] if batches cannot be cut so.
    pub fn with_shard(mut self, rank: usize, ranks: usize) -> Result<Self> {
        if !self.batch.is_multiple_of(ranks as u64) || rank >= ranks {
            let what = format!("a batch of {} has no part {rank} of {ranks} equal ones", self.batch);
            return Err(Error::invalid(what));
        }
        let part = self.batch / ranks as u64;
        self.shard = part * rank as u64..part * (rank as u64 + 1);
        Ok(self)
    }

    /// Goes to the beginning of an epoch, which has an order of its own.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.position = Position { epoch, sample: 0 };
        self.order = Permutation::new(self.samples, hash_numbers(&[self.seed.unwrap_or(0), epoch]));
    }

    /// How far the job is.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Goes on where a sampler of the same samples and seed was, whatever its batches and ranks.
    ///
    /// # Errors
    /// [`Error::Illegal`] for a place outside: a position in other samples.
    pub fn resume(&mut self, position: Position) -> Result<()> {
        if position.sample > self.samples {
            let what = format!("sample {} of an epoch of {}", position.sample, self.samples);
            return Err(Error::invalid(format!("{what}: this position belongs to other data")));
        }
        self.set_epoch(position.epoch);
        self.position = position;
        Ok(())
    }

    /// Batches in a whole epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        match self.last_batch {
            LastBatch::Drop => self.samples / self.batch,
            LastBatch::Pad => self.samples.div_ceil(self.batch),
        }
    }

    /// The next batch, of the next epoch if this one has none left.
    pub fn next_or_new_epoch(&mut self) -> Vec<u64> {
        if !self.has_next() {
            self.set_epoch(self.position.epoch + 1);
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
        self.position.sample = (first + self.batch).min(self.samples);
        self.shard.clone().map(|place| self.sample((first + place) % self.samples)).collect()
    }

    fn sample(&self, place: u64) -> u64 {
        if self.seed.is_some() { self.order.at(place) } else { place }
    }
}

/// The batches that are left of this epoch.
impl Iterator for Sampler {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        self.has_next().then(|| self.take_next())
    }
}
