//! Choice of the batch in six steps.

use crate::BatchPlan;
use crate::batch_plan::factors;
use crate::cost::Estimate;
use serde::Serialize;
use unisono_nn::error::{Error, Result};
use unisono_parallel::optimizer::LrScaling;

/// Division of a global batch over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchRecipe {
    /// 1. Tokens per optimizer step, as training requires.
    pub tokens: usize,
    /// 2. Sequence length, which determines the samples.
    pub sequence: usize,
    /// Samples per step.
    pub samples: usize,
    /// 3. Largest number of samples that fits in a rank's memory at once.
    pub max_micro_batch: usize,
    /// 4. Number of data ranks with different sequences: all of them, before accumulation.
    pub data_ranks: usize,
    /// 5. Micro-batch: the largest number of samples that divides evenly.
    pub micro_batch: usize,
    /// False if smaller micro-batches keep the stages of a pipeline busier.
    pub is_largest: bool,
    /// 6. Micro-batches per rank and step.
    pub accumulation: usize,
}

impl BatchRecipe {
    /// Divides this number of tokens per step. Prefers more data ranks to larger micro-batches, and
    /// those to accumulation.
    ///
    /// # Errors
    /// [`Error::Invalid`] with numbers that divide evenly, and with the options if there are more
    /// ranks than samples.
    pub fn new(tokens: usize, estimate: &Estimate<'_>) -> Result<Self> {
        Self::with_micro_batch(tokens, estimate, None)
    }

    /// Divides as [`BatchRecipe::new`] does, with this micro-batch instead of the largest.
    ///
    /// # Errors
    /// Fails as [`BatchRecipe::new`] does.
    pub(super) fn with_micro_batch(
        tokens: usize,
        estimate: &Estimate<'_>,
        micro_batch: Option<usize>,
    ) -> Result<Self> {
        let sequence = estimate.shape.gpt.context;
        let samples = BatchPlan::samples(tokens, sequence)?;
        let ranks = estimate.parallel.batch_ranks();
        let largest = estimate.max_micro_batch();
        if largest == 0 {
            let need = estimate.needed(1) / 1e9;
            return Err(Error::invalid(format!(
                "one sample needs {need:.1} GB on each rank, and there is room for {:.1} GB",
                estimate.hardware.usable_memory() / 1e9
            )));
        }
        let each = if samples.is_multiple_of(ranks) { samples / ranks } else { 1 };
        let even = factors(each).into_iter().rfind(|&micro| micro <= largest).unwrap_or(1);
        let micro = micro_batch.unwrap_or(even);
        let batch = BatchPlan::divide(samples, micro, ranks)?;
        Ok(Self {
            tokens,
            sequence,
            samples,
            max_micro_batch: largest,
            data_ranks: ranks,
            micro_batch: micro,
            is_largest: micro == even,
            accumulation: batch.accumulation,
        })
    }

    /// Returns the six steps, one per line.
    pub fn lines(&self) -> Vec<String> {
        let Self { tokens, sequence, samples, max_micro_batch, .. } = self;
        let Self { data_ranks: data, micro_batch: micro, accumulation, .. } = self;
        let which = match self.is_largest {
            true => "the largest that divides evenly",
            false => "smaller than possible, so that stages wait less",
        };
        vec![
            format!("1. {tokens} tokens in a step: as training requires"),
            format!("2. sequences of {sequence}: {samples} samples"),
            format!("3. the largest micro-batch that fits: {max_micro_batch}"),
            format!("4. {data} data ranks with different sequences: all of them, before any accumulation"),
            format!("5. micro-batch {micro}: {which}"),
            format!("6. accumulation {accumulation}: {samples} = {micro} x {accumulation} x {data}"),
        ]
    }
}

/// Returns the factors of the learning rate when batches grow `growth` times: the square root for
/// Adam, and linear for SGD. Both hold below the critical batch size (McCandlish et al., "An
/// empirical model of large-batch training", 2018).
pub(super) fn scaled_rates(growth: usize) -> [f64; 2] {
    [LrScaling::Sqrt, LrScaling::Linear].map(|scale| scale.factor(growth, 1))
}
