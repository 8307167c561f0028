//! Formulas of expert and context parallelism. Experts are not implemented.
//!
//! Sources: Dai et al., "DeepSeekMoE", 2024, for experts; Liu et al., "Ring attention", 2023.

use crate::error::{Error, Result};

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
