//! Micro-batches of data.

use crate::data::TokenBatch;
use crate::error::{Error, Result};

/// Micro-batch.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// For a language model.
    Tokens {
        /// Tokens of whole sequences, or of this rank's chunks of them, one after the other.
        inputs: &'a [u32],
        /// Target of each token: the token after it. Without targets, a forward computes the logits
        /// of the token after the last one.
        targets: &'a [u32],
        /// Tokens per sequence or chunk.
        sequence: usize,
    },
    /// For a classifier.
    Samples {
        /// Features, sample after sample.
        features: &'a [f32],
        /// Class of each sample.
        labels: &'a [u32],
    },
}

/// Micro-batch that owns its memory.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnedBatch {
    /// For a language model, as [`Batch::Tokens`].
    Tokens(TokenBatch),
    /// For a classifier, as [`Batch::Samples`].
    Samples {
        /// Features, sample after sample.
        features: Vec<f32>,
        /// Class of each sample.
        labels: Vec<u32>,
    },
}

impl Batch<'_> {
    /// Copies the batch.
    pub fn to_owned(&self) -> OwnedBatch {
        match *self {
            Batch::Tokens { inputs, targets, sequence } => {
                let (inputs, targets) = (inputs.to_vec(), targets.to_vec());
                OwnedBatch::Tokens(TokenBatch { inputs, targets, sequence })
            }
            Batch::Samples { features, labels } => {
                OwnedBatch::Samples { features: features.to_vec(), labels: labels.to_vec() }
            }
        }
    }
}

impl OwnedBatch {
    /// Returns the tokens per sequence or chunk, if the batch has tokens.
    pub fn sequence(&self) -> Option<usize> {
        match self {
            Self::Tokens(TokenBatch { sequence, .. }) => Some(*sequence),
            Self::Samples { .. } => None,
        }
    }

    /// Returns an error: this batch does not suit a `wanted` model.
    pub(super) fn mismatch<R>(&self, wanted: &str) -> Result<R> {
        let what = match self {
            Self::Tokens(TokenBatch { inputs, sequence, .. }) => {
                format!("{} tokens in sequences of {sequence}", inputs.len())
            }
            Self::Samples { features, labels } => {
                format!("{} features of {} samples", features.len(), labels.len())
            }
        };
        Err(Error::invalid(format!("{what} for {wanted}")))
    }
}
