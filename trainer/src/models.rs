//! Models, and their interface for the training loop.

mod classifier;
mod gpt;
pub mod gpt2;
mod gpt_config;
mod sampling;
#[cfg(test)]
mod tests;

pub use classifier::Classifier;
pub use gpt::Gpt;
pub use gpt_config::{FeedForward, GptConfig, Norm};
pub use sampling::Sampling;

use crate::error::{Error, Result};
use crate::pass::Pass;

/// Micro-batch.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// For a language model.
    Tokens {
        /// Tokens of whole sequences, or of this rank's chunks of them, one after the other.
        inputs: &'a [u32],
        /// Target of each token: the token after it.
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

impl Batch<'_> {
    /// Returns an error: this batch does not suit a `wanted` model.
    fn mismatch<R>(&self, wanted: &str) -> Result<R> {
        let what = match self {
            Batch::Tokens { inputs, sequence, .. } => {
                format!("{} tokens in sequences of {sequence}", inputs.len())
            }
            Batch::Samples { features, labels } => {
                format!("{} features of {} samples", features.len(), labels.len())
            }
        };
        Err(Error::invalid(format!("{what} for {wanted}")))
    }
}

/// Model with a loss and its backward, for the training loop.
///
/// Both directions announce every unit to the strategy.
pub trait Model: Send {
    /// Computes the mean loss of each micro-batch of the pass.
    ///
    /// # Errors
    /// Fails for an unsuitable batch. Returns the error of a failed collective.
    fn forward_each(&self, pass: &mut Pass<'_>, batches: &[Batch<'_>]) -> Result<Vec<f32>>;

    /// Computes the mean loss of `batch`, the only micro-batch.
    ///
    /// # Errors
    /// Fails as [`Model::forward_each`] does.
    fn forward(&self, pass: &mut Pass<'_>, batch: &Batch<'_>) -> Result<f32> {
        Ok(self.forward_each(pass, std::slice::from_ref(batch))?.into_iter().sum())
    }

    /// Adds the gradient of `scale` times the sum of the losses to the gradients of all parameters.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn backward(&self, pass: &mut Pass<'_>, scale: f32) -> Result<()>;
}
