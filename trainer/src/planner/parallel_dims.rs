//! Formulas of pipeline, expert and context parallelism. Experts are not implemented.
//!
//! Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, for
//! 1F1B; Qi et al., "Zero bubble pipeline parallelism", ICLR 2024; Dai et al., "DeepSeekMoE", 2024,
//! for experts; Liu et al., "Ring attention", 2023.

use crate::error::{Error, Result};
use serde::Serialize;

/// Order of work in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PipelineSchedule {
    /// One batch through all stages.
    Naive,
    /// All forward passes, then all backward passes.
    GPipe,
    /// Alternating forward and backward passes.
    OneForwardOneBackward,
    /// 1F1B with the gradients of weights in idle time.
    ZeroBubble,
}

impl PipelineSchedule {
    /// All schedules.
    pub const ALL: [Self; 4] = [Self::Naive, Self::GPipe, Self::OneForwardOneBackward, Self::ZeroBubble];

    /// Returns the usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::GPipe => "GPipe",
            Self::OneForwardOneBackward => "1F1B",
            Self::ZeroBubble => "zero bubble",
        }
    }

    /// Returns the idle fraction of equal stages.
    pub fn bubble_fraction(self, stages: usize, micro_batches: usize) -> f64 {
        let (stages, micro_batches) = (stages as f64, micro_batches as f64);
        match self {
            Self::Naive => (stages - 1.0) / stages,
            Self::GPipe | Self::OneForwardOneBackward => (stages - 1.0) / (micro_batches + stages - 1.0),
            Self::ZeroBubble => 0.0,
        }
    }

    /// Returns the maximum number of micro-batches whose activations `stage` holds.
    pub fn activations_held(self, stages: usize, micro_batches: usize, stage: usize) -> usize {
        match self {
            Self::Naive => 1,
            Self::GPipe => micro_batches,
            Self::OneForwardOneBackward | Self::ZeroBubble => micro_batches.min(stages - stage),
        }
    }
}

/// Returns the number of ways to choose `chosen` of `experts`.
pub fn expert_combinations(experts: u64, chosen: u64) -> u128 {
    (0..u128::from(chosen)).fold(1, |ways, k| ways * (u128::from(experts) - k) / (k + 1))
}

/// Returns the elements that attention keeps per sequence, head and rank: all scores, or one sum
/// per row with a kernel that recomputes scores.
pub fn attention_score_elements(sequence: usize, ranks: usize, keeps_scores: bool) -> f64 {
    let rows = sequence as f64 / ranks as f64;
    if keeps_scores { rows * sequence as f64 } else { rows }
}

/// Returns the number of ranks of a mesh with five kinds of parallelism: three factors. Sequence
/// parallel ranks are the tensor parallel ranks, and expert parallel groups are within data
/// parallel groups.
///
/// # Errors
/// [`Error::Invalid`] if the last two degrees do not divide their axes.
pub fn world_size(
    tensor: usize,
    sequence: usize,
    pipeline: usize,
    data: usize,
    expert: usize,
) -> Result<usize> {
    if sequence != 1 && sequence != tensor {
        let what = format!("sequence = {sequence} reuses the ranks of tensor = {tensor}");
        return Err(Error::invalid(format!("{what}: 1 or as many")));
    }
    if expert == 0 || !data.is_multiple_of(expert) {
        return Err(Error::invalid(format!(
            "expert = {expert} lies within data = {data} and does not divide it"
        )));
    }
    Ok(tensor * pipeline * data)
}
