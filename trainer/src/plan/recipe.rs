//! The batch, in six steps.

use super::hardware::Hardware;
use super::sizes::{Bytes, Sizes};
use super::state::Cut;
use crate::error::{Error, Result};
use crate::train::{Batch, Scale, factors};
use serde::Serialize;

/// How a global batch reaches the ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recipe {
    /// 1. Tokens of a step of the optimiser, as learning asks for.
    pub tokens: usize,
    /// 2. Tokens of a sequence, and so many samples.
    pub sequence: usize,
    /// Samples of a step.
    pub samples: usize,
    /// 3. The most samples that a rank has room for at once.
    pub largest_micro: usize,
    /// 4. Data ranks, as many as there are: before accumulation.
    pub data: usize,
    /// 5. Samples at once, the largest number with which all goes even.
    pub micro: usize,
    /// 6. Times that each rank does so.
    pub accumulation: usize,
}

impl Recipe {
    /// For so many tokens in a step. More data ranks come before larger micro-batches, and those before accumulation.
    ///
    /// # Errors
    /// [`Error::Illegal`] with the numbers that go together, and with the ways out where there are more ranks than samples.
    pub fn new(tokens: usize, sizes: &Sizes, bytes: &Bytes, hardware: &Hardware, cut: &Cut) -> Result<Self> {
        let samples = Batch::samples(tokens, sizes.sequence)?;
        let ranks = cut.data / cut.context;
        let largest = cut.largest_micro(sizes, bytes, hardware);
        if largest == 0 {
            let need = cut.needed(sizes, bytes, 1) / 1e9;
            return Err(Error::illegal(format!(
                "one sample needs {need:.1} GB on each rank, and there is room for {:.1} GB",
                hardware.room() / 1e9
            )));
        }
        let each = if samples.is_multiple_of(ranks) { samples / ranks } else { 1 };
        let micro = factors(each).into_iter().rfind(|&micro| micro <= largest).unwrap_or(1);
        let batch = Batch::divide(samples, micro, ranks)?;
        Ok(Self {
            tokens,
            sequence: sizes.sequence,
            samples,
            largest_micro: largest,
            data: ranks,
            micro,
            accumulation: batch.accumulation,
        })
    }

    /// The six steps, a line each.
    pub fn lines(&self) -> Vec<String> {
        let Self { tokens, sequence, samples, largest_micro, data, micro, accumulation } = self;
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
pub fn rates(growth: usize) -> [f64; 2] {
    [Scale::Sqrt, Scale::Linear].map(|scale| scale.factor(growth, 1))
}
