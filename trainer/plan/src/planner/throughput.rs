//! Pace of a plan: tokens per second, utilization, and days of a whole run.

use crate::cost::format::{count, time};
use crate::cost::{Hardware, ModelShape};
use crate::planner::search::Candidate;
use serde::Serialize;
use std::fmt;

/// Pace of the chosen mesh.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Tokens of a step.
    pub step_tokens: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs utilization: operations of the model per second, as a share of those that all
    /// ranks reach in large matrix products.
    pub mfu: f64,
    /// Tokens of the whole run.
    pub train_tokens: f64,
    /// Days of the whole run.
    pub days: f64,
}

/// Tokens per parameter of a run whose length is not given (Hoffmann et al., "Training
/// compute-optimal large language models", 2022).
const TOKENS_PER_PARAMETER: f64 = 20.0;

impl Throughput {
    /// Computes the pace of a candidate, for a run of the usual length.
    pub(super) fn new(candidate: &Candidate, shape: &ModelShape, hardware: &Hardware) -> Self {
        let Candidate { parallel, micro_batch, accumulation, .. } = candidate;
        let samples = (micro_batch * accumulation * parallel.batch_ranks()) as f64;
        let (step_seconds, step_tokens) = (candidate.seconds(), samples * shape.gpt.context as f64);
        let reached = hardware.ranks as f64 * hardware.cores_per_rank * hardware.flops;
        let pace = Self {
            step_seconds,
            step_tokens,
            tokens_per_second: step_tokens / step_seconds,
            mfu: samples * shape.flops() / step_seconds / reached,
            train_tokens: 0.0,
            days: 0.0,
        };
        pace.with_train_tokens(TOKENS_PER_PARAMETER * shape.parameters)
    }

    /// Sets the tokens of the whole run.
    pub(super) fn with_train_tokens(self, train_tokens: f64) -> Self {
        Self { train_tokens, days: train_tokens / self.tokens_per_second / 86_400.0, ..self }
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step_seconds, step_tokens, tokens_per_second, mfu, train_tokens, days } = *self;
        write!(
            f,
            "{} for the {step_tokens} tokens of a step: {tokens_per_second:.0} tokens/s, MFU {:.0} % of the \
             operations that ranks reach\n{days:.3} days for {} tokens",
            time(step_seconds),
            100.0 * mfu,
            count(train_tokens)
        )
    }
}
