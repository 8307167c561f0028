//! Sampling of the next token.

use crate::random::{splitmix, unit_f64};

/// Method to choose the next token from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most probable token; the first of equals.
    Greedy,
    /// Random, with the probabilities softmax(logits / temperature).
    Temperature {
        /// Positive. Close to 0 is greedy.
        temperature: f32,
        /// Seed of the choice, together with the position.
        seed: u64,
    },
}

impl Sampling {
    /// Chooses a token for position `place` of the text.
    pub(super) fn pick(self, logits: &[f32], place: u64) -> u32 {
        let (best, most) = argmax(logits);
        match self {
            Sampling::Greedy => best,
            Sampling::Temperature { temperature, seed } => {
                let power = |logit: &f32| (f64::from(logit - most) / f64::from(temperature)).exp();
                let powers: Vec<f64> = logits.iter().map(power).collect();
                let mut left = unit_f64(splitmix(seed ^ splitmix(place))) * powers.iter().sum::<f64>();
                let chosen = powers.iter().position(|power| {
                    left -= power;
                    left < 0.0
                });
                chosen.map_or(best, |token| token as u32)
            }
        }
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

    #[test]
    fn sampling_frequencies_match_softmax() {
        let logits = [0.0, 3.0f32.ln(), f32::NEG_INFINITY, 6.0f32.ln()];
        assert_eq!(Sampling::Greedy.pick(&logits, 0), 3);
        let warm = Sampling::Temperature { temperature: 1.0, seed: 5 };
        let mut counts = [0; 4];
        (0..10_000).for_each(|place| counts[warm.pick(&logits, place) as usize] += 1);
        for (count, expected) in counts.into_iter().zip([1000, 3000, 0, 6000]) {
            assert!(i32::abs(count - expected) < 200, "{counts:?}");
        }
        let cold = Sampling::Temperature { temperature: 0.01, seed: 5 };
        assert!((0..100).all(|place| cold.pick(&logits, place) == 3));
    }
}
