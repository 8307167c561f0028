//! The batch, in six steps.

use crate::error::{Error, Result};
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims};
use crate::planner::parallel_config::ParallelConfig;
use crate::train::{BatchPlan, LrScaling, factors};
use serde::Serialize;

/// How a global batch reaches the ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchRecipe {
    /// 1. Tokens of a step of the optimizer, as learning asks for.
    pub tokens: usize,
    /// 2. Tokens of a sequence, and so many samples.
    pub sequence: usize,
    /// Samples of a step.
    pub samples: usize,
    /// 3. The most samples that a rank has room for at once.
    pub max_micro_batch: usize,
    /// 4. Data ranks, as many as there are: before accumulation.
    pub data_ranks: usize,
    /// 5. Samples at once, the largest number with which all goes even.
    pub micro_batch: usize,
    /// 6. Times that each rank does so.
    pub accumulation: usize,
}

impl BatchRecipe {
    /// For so many tokens in a step. More data ranks come before larger micro-batches, and those before accumulation.
    ///
    /// # Errors
    /// [`Error::Illegal`] with the numbers that go together, and with the ways out where there are more ranks than samples.
    pub fn new(
        tokens: usize,
        sizes: &ModelDims,
        bytes: &BytesPerParam,
        hardware: &Hardware,
        cut: &ParallelConfig,
    ) -> Result<Self> {
        let samples = BatchPlan::samples(tokens, sizes.sequence)?;
        let ranks = cut.data / cut.context;
        let largest = cut.max_micro_batch(sizes, bytes, hardware);
        if largest == 0 {
            let need = cut.needed_bytes(sizes, bytes, 1) / 1e9;
            return Err(Error::invalid(format!(
                "one sample needs {need:.1} GB on each rank, and there is room for {:.1} GB",
                hardware.usable_memory() / 1e9
            )));
        }
        let each = if samples.is_multiple_of(ranks) { samples / ranks } else { 1 };
        let micro = factors(each).into_iter().rfind(|&micro| micro <= largest).unwrap_or(1);
        let batch = BatchPlan::divide(samples, micro, ranks)?;
        Ok(Self {
            tokens,
            sequence: sizes.sequence,
            samples,
            max_micro_batch: largest,
            data_ranks: ranks,
            micro_batch: micro,
            accumulation: batch.accumulation,
        })
    }

    /// The six steps, a line each.
    pub fn lines(&self) -> Vec<String> {
        let Self {
            tokens,
            sequence,
            samples,
            max_micro_batch: largest_micro,
            data_ranks: data,
            micro_batch: micro,
            accumulation,
        } = self;
        vec![
            format!("1. {tokens} tokens in a step: what learning asks for"),
            format!("2. sequences of {sequence}: {samples} samples"),
            format!("3. the largest micro-batch that fits: {largest_micro}"),
            format!("4. {data} data ranks: all there are, before any accumulation"),
            format!("5. micro-batch {micro}: the largest that goes even"),
            format!("6. accumulation {accumulation}: {samples} = {micro} x {accumulation} x {data}"),
        ]
    }
}

/// What the learning rate is multiplied by when batches grow `growth` times: with its root for Adam, with itself for plain descent;
/// both only below the critical batch size (McCandlish et al., "An empirical model of large-batch training", 2018).
pub fn scaled_rates(growth: usize) -> [f64; 2] {
    [LrScaling::Sqrt, LrScaling::Linear].map(|scale| scale.factor(growth, 1))
}
