//! Other ways to cut a run, as arithmetic: pipelines, experts, sequences. Pipelines and experts are not part of this build.
//!
//! Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, for 1F1B; Qi et al., "Zero bubble pipeline
//! parallelism", ICLR 2024; Dai et al., "DeepSeekMoE", 2024, for experts; Liu et al., "Ring attention", 2023.

use crate::error::{Error, Result};
use serde::Serialize;

/// In which order the stages of a pipeline work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PipelineSchedule {
    /// One batch through all stages.
    Naive,
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward in turns.
    OneForwardOneBackward,
    /// As before, with the gradients of weights where there is nothing else to do.
    ZeroBubble,
}

impl PipelineSchedule {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Naive, Self::GPipe, Self::OneForwardOneBackward, Self::ZeroBubble];

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::GPipe => "GPipe",
            Self::OneForwardOneBackward => "1F1B",
            Self::ZeroBubble => "zero bubble",
        }
    }

    /// Share of the time that equal stages idle, with so many micro-batches.
    pub fn bubble_fraction(self, stages: usize, micro_batches: usize) -> f64 {
        let (stages, micro_batches) = (stages as f64, micro_batches as f64);
        match self {
            Self::Naive => (stages - 1.0) / stages,
            Self::GPipe | Self::OneForwardOneBackward => (stages - 1.0) / (micro_batches + stages - 1.0),
            Self::ZeroBubble => 0.0,
        }
    }

    /// Micro-batches whose activations stage `stage` holds at most.
    pub fn activations_held(self, stages: usize, micro_batches: usize, stage: usize) -> usize {
        match self {
            Self::Naive => 1,
            Self::GPipe => micro_batches,
            Self::OneForwardOneBackward | Self::ZeroBubble => micro_batches.min(stages - stage),
        }
    }
}

/// In how many ways `chosen` of `experts` can be.
pub fn expert_combinations(experts: u64, chosen: u64) -> u128 {
    (0..u128::from(chosen)).fold(1, |ways, k| ways * (u128::from(experts) - k) / (k + 1))
}

/// Numbers that attention keeps of a sequence, for each head and each of `ranks` ranks that share it: all scores, or with a kernel
/// that computes them again no more than a row's sum.
pub fn attention_score_elements(sequence: usize, ranks: usize, keeps_scores: bool) -> f64 {
    let rows = sequence as f64 / ranks as f64;
    if keeps_scores { rows * sequence as f64 } else { rows }
}

/// Ranks of a mesh of five kinds of parallelism: three factors. Sequence parallel ranks are the tensor parallel ones, and expert
/// parallel groups lie within the data parallel ones.
///
/// # Errors
/// [`Error::Illegal`] where the last two do not fit into their axes.
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
