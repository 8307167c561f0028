//! Scaling of the frequencies of rotary positions, for contexts longer than those of pretraining.

use crate::error::{Error, Result};
use std::f64::consts::TAU;

/// Change of frequencies, with the formulas of Hugging Face's transformers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Divides all frequencies (Chen et al., "Extending context window of large language models via
    /// positional interpolation", 2023).
    Linear {
        /// Divisor of all frequencies.
        factor: f64,
    },
    /// Divides low frequencies, as Llama 3.1 does.
    Llama3(Llama3Scaling),
    /// Divides low frequencies, and scales queries and keys.
    Yarn(YarnScaling),
}

/// Scaling of frequencies in Llama 3.1 (Grattafiori et al., "The Llama 3 herd of models", 2024).
///
/// Pairs that turn less than `low_freq_factor` times in the original context turn `factor` times
/// slower. Pairs that turn more than `high_freq_factor` times are unchanged. Between them, both
/// frequencies are interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Turns in the original context below which a frequency is divided.
    pub low_freq_factor: f64,
    /// Turns in the original context above which a frequency is unchanged.
    pub high_freq_factor: f64,
    /// Context of pretraining in tokens.
    pub original_context: usize,
}

/// Scaling of frequencies in YaRN (Peng et al., "YaRN: efficient context window extension of large
/// language models", ICLR 2024).
///
/// Pairs that turn less than `beta_slow` times in the original context turn `factor` times slower.
/// Pairs that turn more than `beta_fast` times are unchanged. Between them, a ramp over the numbers
/// of the pairs interpolates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Context of pretraining in tokens.
    pub original_context: usize,
    /// Turns in the original context above which a frequency is unchanged.
    pub beta_fast: f64,
    /// Turns in the original context below which a frequency is divided.
    pub beta_slow: f64,
    /// Factor of rotated queries and keys; `None` for 0.1 ln(factor) + 1.
    pub attention_factor: Option<f64>,
    /// Rounds the ends of the ramp outwards to whole pairs.
    pub truncate: bool,
}

impl RopeScaling {
    /// Returns true if it changes nothing.
    pub fn is_identity(&self) -> bool {
        let factor = match self {
            Self::Linear { factor } => *factor,
            Self::Llama3(scaling) => scaling.factor,
            Self::Yarn(scaling) => scaling.factor,
        };
        factor == 1.0 && self.rotation_scale() == 1.0
    }

    /// Returns the factor of rotated queries and keys.
    pub(super) fn rotation_scale(&self) -> f64 {
        match self {
            Self::Yarn(scaling) => {
                scaling.attention_factor.unwrap_or_else(|| YarnScaling::magnitude(scaling.factor, 1.0))
            }
            Self::Linear { .. } | Self::Llama3(_) => 1.0,
        }
    }

    /// Scales the frequencies of all pairs of a head. They are those of a rotary base `base`.
    pub(super) fn apply(&self, base: f64, frequencies: &mut [f64]) {
        match self {
            Self::Linear { factor } => frequencies.iter_mut().for_each(|frequency| *frequency /= factor),
            Self::Llama3(scaling) => {
                frequencies.iter_mut().for_each(|frequency| *frequency = scaling.apply(*frequency));
            }
            Self::Yarn(scaling) => {
                let [first, last] = scaling.ramp(base, 2 * frequencies.len());
                for (pair, frequency) in frequencies.iter_mut().enumerate() {
                    let slow = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                    *frequency = *frequency / scaling.factor * slow + *frequency * (1.0 - slow);
                }
            }
        }
    }

    /// Checks the numbers, for frequencies of a rotary base `base`.
    pub(super) fn check(&self, base: f64) -> Result<()> {
        let are_positive = |numbers: &[f64]| numbers.iter().all(|number| number.is_finite() && *number > 0.0);
        match *self {
            Self::Linear { factor } if !are_positive(&[factor]) => {
                Err(Error::invalid(format!("linear rotary scaling by {factor}: it must be positive")))
            }
            Self::Llama3(Llama3Scaling { factor, low_freq_factor, high_freq_factor, original_context })
                if !are_positive(&[factor, low_freq_factor, high_freq_factor, original_context as f64])
                    || low_freq_factor >= high_freq_factor =>
            {
                Err(Error::invalid(format!(
                    "rotary scaling by {factor} between {low_freq_factor} and {high_freq_factor} turns in \
                     {original_context} tokens: all numbers must be positive, and the second above the first"
                )))
            }
            Self::Yarn(scaling) => scaling.check(base),
            Self::Linear { .. } | Self::Llama3(_) => Ok(()),
        }
    }
}

impl Llama3Scaling {
    fn apply(&self, frequency: f64) -> f64 {
        let turns = self.original_context as f64 * frequency / TAU;
        let fast = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let fast = fast.clamp(0.0, 1.0);
        (1.0 - fast) * frequency / self.factor + fast * frequency
    }
}

impl YarnScaling {
    /// Returns the factor of rotated queries and keys: 0.1 `weight` ln(factor) + 1, and 1 for
    /// factors up to 1.
    pub fn magnitude(factor: f64, weight: f64) -> f64 {
        if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 }
    }

    /// Returns the numbers of the pairs between which frequencies are interpolated, for heads of
    /// `head_dim` features.
    fn ramp(&self, base: f64, head_dim: usize) -> [f64; 2] {
        let features = head_dim as f64;
        // Number of the pair that turns this many times in the original context.
        let pair =
            |turns: f64| features * (self.original_context as f64 / (turns * TAU)).ln() / (2.0 * base.ln());
        let [mut first, mut last] = [self.beta_fast, self.beta_slow].map(pair);
        if self.truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, last) = (first.max(0.0), last.min(features - 1.0));
        [first, if first == last { last + 0.001 } else { last }]
    }

    fn check(&self, base: f64) -> Result<()> {
        let Self { factor, original_context, beta_fast, beta_slow, attention_factor, .. } = *self;
        let scale = attention_factor.unwrap_or(1.0);
        let numbers = [factor, original_context as f64, beta_fast, beta_slow, scale];
        let are_positive = numbers.iter().all(|number| number.is_finite() && *number > 0.0);
        if !are_positive || beta_slow > beta_fast || base <= 1.0 {
            return Err(Error::invalid(format!(
                "yarn's rotary scaling by {factor} between {beta_slow} and {beta_fast} turns in \
                 {original_context} tokens, with a rotary base of {base} and an attention factor of {scale}: all \
                 numbers must be positive, the second at least the first, and the base above 1"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::RopeConfig;

    fn frequencies(base: f64, scaling: Option<RopeScaling>, head_dim: usize) -> Vec<f32> {
        RopeConfig { base, scaling }.frequencies(head_dim)
    }

    const YARN: YarnScaling = YarnScaling {
        factor: 4.0,
        original_context: 32_768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };

    #[test]
    fn llama_3_scaling_matches_published_frequencies() {
        let scaling = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let [plain, scaled] =
            [None, Some(RopeScaling::Llama3(scaling))].map(|scaling| frequencies(500_000.0, scaling, 128));
        let ratio = |pair: usize| plain[pair] / scaled[pair];
        // Wavelengths: 2048 tokens between pairs 28 and 29, 8192 between pairs 34 and 35.
        assert!((0..=28).all(|pair| ratio(pair) == 1.0), "fast pairs are unchanged");
        assert!((35..64).all(|pair| (ratio(pair) - 8.0).abs() < 1e-5), "slow pairs are divided");
        assert!((29..35).all(|pair| ratio(pair) > ratio(pair - 1)), "between them it falls");
        // Computed by transformers' formula in 64 bits.
        let turns = 8192.0 * f64::from(plain[31]) / TAU;
        let smooth = (turns - 1.0) / 3.0;
        let expected = f64::from(plain[31]) * ((1.0 - smooth) / 8.0 + smooth);
        assert!((f64::from(scaled[31]) / expected - 1.0).abs() < 1e-6);
    }

    #[test]
    fn linear_scaling_divides_all_frequencies() {
        let [plain, scaled] =
            [None, Some(RopeScaling::Linear { factor: 4.0 })].map(|scaling| frequencies(1e4, scaling, 64));
        assert!(plain.iter().zip(&scaled).all(|(plain, scaled)| *plain == 4.0 * scaled));
        assert!(RopeScaling::Linear { factor: 1.0 }.is_identity());
    }

    /// The pairs at the ends of the ramp are those of Qwen2.5 with YaRN: a base of 10⁶, heads of
    /// 128 features, and a context of 32,768 tokens.
    #[test]
    fn yarn_scaling_matches_published_frequencies() {
        let [plain, scaled] =
            [None, Some(RopeScaling::Yarn(YARN))].map(|scaling| frequencies(1e6, scaling, 128));
        let ratio = |pair: usize| f64::from(plain[pair] / scaled[pair]);
        // A pair turns 32 times between pairs 23 and 24, and once between pairs 39 and 40.
        assert!((0..=23).all(|pair| ratio(pair) == 1.0), "fast pairs are unchanged");
        assert!((40..64).all(|pair| (ratio(pair) - 4.0).abs() < 1e-6), "slow pairs are divided");
        for pair in 24..40 {
            let slow = (pair as f64 - 23.0) / 17.0;
            assert!((ratio(pair) * (slow / 4.0 + 1.0 - slow) - 1.0).abs() < 1e-6, "pair {pair}");
        }
        let exact = YarnScaling { truncate: false, ..YARN };
        let [first, last] = exact.ramp(1e6, 128);
        assert!((23.59..23.61).contains(&first) && (39.65..39.67).contains(&last), "{first} to {last}");
        // All pairs are between the ends of a short context.
        let short = YarnScaling { original_context: 16, ..YARN };
        assert_eq!(short.ramp(500.0, 16)[0], 0.0);
    }

    #[test]
    fn yarn_scales_queries_and_keys() {
        let scale = |scaling: YarnScaling| RopeScaling::Yarn(scaling).rotation_scale();
        assert!((scale(YARN) - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-15);
        assert_eq!(scale(YarnScaling { attention_factor: Some(1.25), ..YARN }), 1.25);
        let small = YarnScaling { factor: 1.0, ..YARN };
        assert!(RopeScaling::Yarn(small).is_identity());
        assert!(!RopeScaling::Yarn(YarnScaling { attention_factor: Some(1.25), ..small }).is_identity());
        assert_eq!(YarnScaling::magnitude(0.5, 1.0), 1.0);
    }

    #[test]
    fn impossible_scalings_are_rejected() {
        let text = |scaling: RopeScaling| scaling.check(1e4).unwrap_err().to_string();
        let llama_3 =
            Llama3Scaling { factor: 8.0, low_freq_factor: 4.0, high_freq_factor: 4.0, original_context: 64 };
        assert!(text(RopeScaling::Llama3(llama_3)).contains("between 4 and 4 turns"));
        assert!(text(RopeScaling::Linear { factor: -2.0 }).contains("by -2: it must be positive"));
        let crossed = YarnScaling { beta_fast: 1.0, beta_slow: 2.0, ..YARN };
        assert!(text(RopeScaling::Yarn(crossed)).contains("between 2 and 1 turns"));
        let negative = YarnScaling { attention_factor: Some(-1.0), ..YARN };
        assert!(text(RopeScaling::Yarn(negative)).contains("an attention factor of -1"));
        assert!(RopeScaling::Yarn(YARN).check(1.0).is_err(), "no pair turns more than another");
    }
}
