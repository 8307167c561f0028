//! Sampling of the next token.

use std::collections::BTreeSet;
use unisono_nn::random::{splitmix, unit_f64};

/// Method to choose the next token from logits: random, with the probabilities softmax(logits /
/// temperature), among the most probable tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Temperature; 0 always chooses the most probable token, the first of equals.
    pub temperature: f32,
    /// Number of most probable tokens to choose from (Fan et al., "Hierarchical neural story
    /// generation", 2018); 0 allows all.
    pub top_k: usize,
    /// Chooses from the most probable tokens whose probabilities first add up to this number
    /// (Holtzman et al., "The curious case of neural text degeneration", 2020); 1 allows all.
    /// Probabilities are those among the `top_k` tokens.
    pub top_p: f32,
    /// Divides the positive logits of tokens that the text has by this number, and multiplies the
    /// negative ones by it (Keskar et al., "CTRL: A conditional transformer language model for
    /// controllable generation", 2019); 1 changes none.
    pub repetition_penalty: f32,
    /// Seed of the choice, together with the position.
    pub seed: u64,
}

impl Sampling {
    /// Chooses the most probable token.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 0 };

    /// Applies the repetition penalty to the logits of the token after `text`.
    pub(super) fn penalize(self, logits: &mut [f32], text: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        // A token that the text has twice is penalized once.
        let present: BTreeSet<u32> = text.iter().copied().collect();
        for token in present {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let is_positive = *logit > 0.0;
            *logit =
                if is_positive { *logit / self.repetition_penalty } else { *logit * self.repetition_penalty };
        }
    }

    /// Chooses a token for position `place` of the text.
    pub(super) fn pick(self, logits: &[f32], place: u64) -> u32 {
        let (best, most) = argmax(logits);
        if self.temperature == 0.0 {
            return best;
        }
        // Relative to the greatest logit, no power overflows.
        let power = |logit: &f32| (f64::from(logit - most) / f64::from(self.temperature)).exp();
        let mut powers: Vec<f64> = logits.iter().map(power).collect();
        self.leave_out(&mut powers);
        let mut left = unit_f64(splitmix(self.seed ^ splitmix(place))) * powers.iter().sum::<f64>();
        let chosen = powers.iter().position(|power| {
            left -= power;
            left < 0.0
        });
        // Rounding can leave a rest after the last token, and then none was found.
        chosen.map_or(best, |token| token as u32)
    }

    /// Sets the powers of tokens that may not be chosen to 0.
    fn leave_out(self, powers: &mut [f64]) {
        if self.top_k == 0 && self.top_p >= 1.0 {
            return;
        }
        let mut order: Vec<usize> = (0..powers.len()).collect();
        order.sort_by(|left, right| powers[*right].total_cmp(&powers[*left]));
        let count = if self.top_k == 0 { order.len() } else { self.top_k.min(order.len()) };
        let candidates = &order[..count];
        let limit = f64::from(self.top_p) * candidates.iter().map(|&token| powers[token]).sum::<f64>();
        let (mut sum, mut kept) = (0.0, 0);
        for token in candidates {
            // One token stays in any case, also if the limit is rounded to 0.
            if kept > 0 && sum >= limit {
                break;
            }
            sum += powers[*token];
            kept += 1;
        }
        order[kept..].iter().for_each(|token| powers[*token] = 0.0);
    }
}

fn argmax(logits: &[f32]) -> (u32, f32) {
    let start = (0, f32::NEG_INFINITY);
    let indexed = (0..).zip(logits.iter().copied());
    indexed.fold(start, |best, next| if next.1 > best.1 { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> [f32; 4] {
        [0.0, 3.0f32.ln(), f32::NEG_INFINITY, 6.0f32.ln()]
    }

    fn counts(sampling: Sampling) -> [i32; 4] {
        let mut counts = [0; 4];
        (0..10_000).for_each(|place| counts[sampling.pick(&logits(), place) as usize] += 1);
        counts
    }

    #[test]
    fn sampling_frequencies_match_softmax() {
        assert_eq!(Sampling::GREEDY.pick(&logits(), 0), 3);
        let warm = Sampling { temperature: 1.0, seed: 5, ..Sampling::GREEDY };
        let assert_near = |counts: [i32; 4], expected: [i32; 4]| {
            let pairs = counts.iter().zip(expected);
            assert!(pairs.into_iter().all(|(count, expected)| (count - expected).abs() < 200), "{counts:?}");
        };
        assert_near(counts(warm), [1000, 3000, 0, 6000]);
        // Two of three, with their probabilities.
        assert_near(counts(Sampling { top_k: 2, ..warm }), [0, 3333, 0, 6667]);
        assert_eq!(counts(Sampling { top_k: 1, ..warm }), [0, 0, 0, 10_000]);
        assert_eq!(counts(Sampling { top_k: 9, ..warm }), counts(warm));
        // 0.6 is not enough for 0.7, and 0.9 is.
        assert_near(counts(Sampling { top_p: 0.7, ..warm }), [0, 3333, 0, 6667]);
        assert_eq!(counts(Sampling { top_p: 0.5, ..warm }), [0, 0, 0, 10_000]);
        assert_near(counts(Sampling { top_p: 0.95, ..warm }), [1000, 3000, 0, 6000]);
        // 6/9 of the probability of two tokens is enough for 0.65, and 0.6 of all would not be.
        assert_eq!(counts(Sampling { top_k: 2, top_p: 0.65, ..warm }), [0, 0, 0, 10_000]);
        let cold = Sampling { temperature: 0.01, ..warm };
        assert!((0..100).all(|place| cold.pick(&logits(), place) == 3));
    }

    /// Returns the tokens that may be chosen, by the definitions: sort, cut after `top_k`, add up,
    /// cut where the sum has reached `top_p`.
    fn naive_choice(powers: &[f64], top_k: usize, top_p: f64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..powers.len()).collect();
        order.sort_by(|left, right| powers[*right].total_cmp(&powers[*left]));
        order.truncate(if top_k == 0 { powers.len() } else { top_k });
        let sum = |count: usize| order[..count].iter().map(|&token| powers[token]).sum::<f64>();
        let share = |count: usize| sum(count) / sum(order.len());
        let mut kept: Vec<usize> = (0..order.len())
            .filter(|&rank| rank == 0 || share(rank) < top_p)
            .map(|rank| order[rank])
            .collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn choice_of_tokens_is_that_of_a_naive_reference() {
        for case in 0..200 {
            let power = |token: u64| (8.0 * unit_f64(splitmix(100 * case + token))).exp();
            let powers: Vec<f64> = (0..17).map(power).collect();
            for (top_k, top_p) in
                [(0, 0.3), (0, 0.9), (5, 1.0), (5, 0.5), (1, 0.9), (40, 0.99), (3, 0.01), (0, 1.0)]
            {
                let mut left = powers.clone();
                Sampling { top_k, top_p, ..Sampling::GREEDY }.leave_out(&mut left);
                let kept: Vec<usize> = (0..left.len()).filter(|&token| left[token] > 0.0).collect();
                let expected = naive_choice(&powers, top_k, f64::from(top_p));
                assert_eq!(kept, expected, "top_k {top_k}, top_p {top_p} of {powers:?}");
            }
        }
    }

    #[test]
    fn tokens_of_the_text_are_penalized_once() {
        let mut logits = [4.0, -1.0, 3.0, -2.0];
        Sampling::GREEDY.penalize(&mut logits, &[0, 2]);
        assert_eq!(logits, [4.0, -1.0, 3.0, -2.0]);
        let penalizing = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
        assert_eq!(penalizing.pick(&logits, 0), 0);
        penalizing.penalize(&mut logits, &[3, 0, 0, 9]);
        assert_eq!(logits, [2.0, -1.0, 3.0, -4.0]);
        assert_eq!(penalizing.pick(&logits, 0), 2);
    }
}
