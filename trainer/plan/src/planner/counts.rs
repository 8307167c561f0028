//! Counts of expert and context parallelism.
//!
//! Sources: Dai et al., "DeepSeekMoE", 2024, for experts; Liu et al., "Ring attention", 2023.

/// Returns the number of ways to choose `chosen` of `experts`.
pub(super) fn expert_combinations(experts: u64, chosen: u64) -> u128 {
    (0..u128::from(chosen)).fold(1, |ways, k| ways * (u128::from(experts) - k) / (k + 1))
}

/// Returns the elements that attention keeps per sequence, head and rank: all scores, or one sum
/// per row with a kernel that recomputes scores.
pub(super) fn attention_score_elements(sequence: usize, ranks: usize, keeps_scores: bool) -> f64 {
    let rows = sequence as f64 / ranks as f64;
    if keeps_scores { rows * sequence as f64 } else { rows }
}
