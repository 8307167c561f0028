//! Scores of experts, the choice of the best, and gradients of both.

use super::RouterScore;
use unisono_nn::ops::host::vector::{exp, sigmoid};

/// Replaces the logits of a token by its scores. Returns the log-sum-exp of the logits.
pub(super) fn score(kind: RouterScore, logits: &mut [f32]) -> f32 {
    // Relative to the greatest logit, no exponential overflows.
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| exp(logit - max)).sum();
    match kind {
        RouterScore::Softmax => logits.iter_mut().for_each(|logit| *logit = exp(*logit - max) / sum),
        RouterScore::Sigmoid => logits.iter_mut().for_each(|logit| *logit = sigmoid(*logit)),
    }
    max + sum.ln()
}

/// Writes the experts with the highest scores, plus `bias` if there is one, from the best. The
/// lower number comes first among equals.
pub(super) fn choose(scores: &[f32], bias: Option<&[f32]>, order: &mut Vec<u32>, chosen: &mut [u32]) {
    let key = |expert: u32| scores[expert as usize] + bias.map_or(0.0, |bias| bias[expert as usize]);
    // The second key makes the choice among equal scores the same on all ranks, since neither the
    // selection nor the sort below is stable.
    let best_first = |left: &u32, right: &u32| key(*right).total_cmp(&key(*left)).then(left.cmp(right));
    order.clear();
    order.extend(0..scores.len() as u32);
    let count = chosen.len();
    // A token uses few of many experts, so only those are sorted.
    order.select_nth_unstable_by(count - 1, best_first);
    order[..count].sort_unstable_by(best_first);
    chosen.copy_from_slice(&order[..count]);
}

/// Rule from the scores of a token's experts to their weights.
#[derive(Clone, Copy)]
pub(super) struct Weighting {
    pub(super) normalize: bool,
    pub(super) scale: f32,
}

impl Weighting {
    /// Writes the weights of the chosen experts.
    pub(super) fn weights(self, scores: &[f32], chosen: &[u32], weights: &mut [f32]) {
        weights.iter_mut().zip(chosen).for_each(|(weight, &expert)| *weight = scores[expert as usize]);
        let factor = self.scale / if self.normalize { sum_of(weights) } else { 1.0 };
        weights.iter_mut().for_each(|weight| *weight *= factor);
    }

    /// Adds the gradient of the scores to `scores_gradient`, from that of the weights.
    pub(super) fn backward(
        self,
        scores: &[f32],
        chosen: &[u32],
        gradient: &[f32],
        scores_gradient: &mut [f32],
    ) {
        let score_of = |expert: u32| scores[expert as usize];
        let (sum, mean) = match self.normalize {
            true => {
                // The divisor is that of forward, which is never 0.
                let sum = chosen.iter().map(|&expert| score_of(expert)).sum::<f32>().max(f32::MIN_POSITIVE);
                let dot: f32 =
                    gradient.iter().zip(chosen).map(|(slope, &expert)| slope * score_of(expert)).sum();
                (sum, dot / sum)
            }
            false => (1.0, 0.0),
        };
        for (slope, &expert) in gradient.iter().zip(chosen) {
            scores_gradient[expert as usize] += self.scale * (slope - mean) / sum;
        }
    }
}

/// Returns the sum of scores, at least the smallest normal number.
pub(super) fn sum_of(scores: &[f32]) -> f32 {
    // Sigmoids of very low logits are all 0, and the result is a divisor.
    scores.iter().sum::<f32>().max(f32::MIN_POSITIVE)
}

/// Replaces the gradient of a token's scores by that of its logits.
pub(super) fn score_backward(kind: RouterScore, scores: &[f32], gradient: &mut [f32]) {
    match kind {
        RouterScore::Softmax => {
            let dot: f32 = gradient.iter().zip(scores).map(|(slope, score)| slope * score).sum();
            gradient.iter_mut().zip(scores).for_each(|(slope, score)| *slope = score * (*slope - dot));
        }
        RouterScore::Sigmoid => {
            gradient.iter_mut().zip(scores).for_each(|(slope, score)| *slope *= score * (1.0 - score));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_choose_the_lower_number() {
        let best = |scores: &[f32], bias: Option<&[f32]>, count| {
            let mut chosen = vec![0; count];
            choose(scores, bias, &mut Vec::new(), &mut chosen);
            chosen
        };
        assert_eq!(best(&[0.25; 4], None, 3), [0, 1, 2]);
        assert_eq!(best(&[0.1, 0.4, 0.1, 0.4], None, 3), [1, 3, 0]);
        assert_eq!(best(&[0.1, 0.4, 0.1, 0.4], Some(&[0.0, 0.0, 0.3, 0.0]), 2), [1, 2]);
        assert_eq!(best(&[f32::NAN; 3], None, 2), [0, 1]);
    }
}
