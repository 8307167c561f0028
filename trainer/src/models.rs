//! Models, and what a training loop sees of them.

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

/// A micro-batch.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// For a language model.
    Tokens {
        /// Tokens of whole sequences, one sequence after another; or of this rank's chunks of them.
        inputs: &'a [u32],
        /// For each of them the token that follows.
        targets: &'a [u32],
        /// Tokens of one sequence, or of a chunk.
        sequence: usize,
    },
    /// For a classifier.
    Samples {
        /// Features of one sample after another.
        features: &'a [f32],
        /// The class of each sample.
        labels: &'a [u32],
    },
}

impl Batch<'_> {
    /// That this is not what a `wanted` model can use.
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

/// What a training loop drives: a loss, and the way back from it.
///
/// Both ways announce every unit to the strategy.
pub trait Model: Send {
    /// The mean loss of each of the micro-batches of the pass.
    ///
    /// # Errors
    /// For a batch that the model cannot use, and of collectives.
    fn forward_each(&self, pass: &mut Pass<'_>, batches: &[Batch<'_>]) -> Result<Vec<f32>>;

    /// The mean loss of `batch`, the only one.
    ///
    /// # Errors
    /// Those of [`Model::forward_each`].
    fn forward(&self, pass: &mut Pass<'_>, batch: &Batch<'_>) -> Result<f32> {
        Ok(self.forward_each(pass, std::slice::from_ref(batch))?.into_iter().sum())
    }

    /// Adds the gradient of `scale` times the sum of those losses to the gradients of all parameters.
    ///
    /// # Errors
    /// Of collectives.
    fn backward(&self, pass: &mut Pass<'_>, scale: f32) -> Result<()>;
}
