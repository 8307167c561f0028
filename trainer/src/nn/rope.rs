//! Rotary position embeddings.

use super::Module;
use crate::error::{Error, Result};
use crate::ops::Rotation;
use crate::pass::Pass;
use crate::tensor::Tensor;
use std::f64::consts::TAU;

/// Frequencies of rotary position embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base θ: pair i of a head with d features turns by θ^(−2i/d) per position.
    pub base: f64,
    /// Slower rotation of slow pairs, for contexts longer than those of pretraining.
    pub scaling: Option<RopeScaling>,
}

/// Scaling of frequencies in Llama 3.1 (Grattafiori et al., "The Llama 3 herd of models", 2024).
///
/// Pairs that turn less than `low_freq_factor` times in the original context turn `factor` times
/// slower. Pairs that turn more than `high_freq_factor` times are unchanged. Between them, both
/// frequencies are interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Turns in the original context below which a frequency is divided.
    pub low_freq_factor: f64,
    /// Turns in the original context above which a frequency is unchanged.
    pub high_freq_factor: f64,
    /// Context of pretraining in tokens.
    pub original_context: usize,
}

impl Default for RopeConfig {
    /// Returns the base of the original publication, without scaling.
    fn default() -> Self {
        Self { base: 10_000.0, scaling: None }
    }
}

impl RopeConfig {
    /// Checks that heads of `head_dim` features can be rotated.
    pub(crate) fn check(&self, head_dim: usize) -> Result<()> {
        if !head_dim.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "rotary positions need an even number of features per head, not {head_dim}"
            )));
        }
        if !(self.base.is_finite() && self.base > 0.0) {
            return Err(Error::invalid(format!("a rotary base of {}: it must be positive", self.base)));
        }
        self.scaling.map_or(Ok(()), |scaling| scaling.check())
    }

    /// Returns the angle per position of each pair of features.
    fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let frequency = |pair: usize| {
            let frequency = self.base.powf(-((2 * pair) as f64) / head_dim as f64);
            self.scaling.map_or(frequency, |scaling| scaling.apply(frequency)) as f32
        };
        (0..head_dim / 2).map(frequency).collect()
    }
}

impl RopeScaling {
    fn check(&self) -> Result<()> {
        let Self { factor, low_freq_factor: low, high_freq_factor: high, original_context } = *self;
        let numbers = [factor, low, high, original_context as f64];
        if numbers.iter().any(|number| !(number.is_finite() && *number > 0.0)) || low >= high {
            return Err(Error::invalid(format!(
                "rotary scaling by {factor} between {low} and {high} turns in {original_context} tokens: \
                 all numbers must be positive, and the second above the first"
            )));
        }
        Ok(())
    }

    fn apply(&self, frequency: f64) -> f64 {
        let turns = self.original_context as f64 * frequency / TAU;
        let fast = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let fast = fast.clamp(0.0, 1.0);
        (1.0 - fast) * frequency / self.factor + fast * frequency
    }
}

/// Rotates pairs of features of queries and keys by their position times a frequency (Su et al.,
/// "RoFormer: enhanced transformer with rotary position embedding", 2021). Feature i of a head with
/// d features is paired with feature i + d/2, as in Hugging Face's Llama.
///
/// (rows, queries | keys | values) → the same shape, in place. Saves nothing.
pub struct RotaryEmbedding {
    frequencies: Vec<f32>,
    heads: usize,
    head_dim: usize,
}

impl RotaryEmbedding {
    /// Creates the module for this rank's `heads` heads of queries and keys together.
    pub fn new(config: RopeConfig, heads: usize, head_dim: usize) -> Self {
        Self { frequencies: config.frequencies(head_dim), heads, head_dim }
    }

    /// Rotates by `sign` times each row's angles.
    fn rotate(&self, pass: &Pass<'_>, tensor: &mut Tensor, sign: f32) -> Result<()> {
        let positions = pass.positions();
        let rotation = Rotation {
            frequencies: &self.frequencies,
            sign,
            used: self.heads * self.head_dim,
            positions: &positions,
        };
        let columns = tensor.columns();
        pass.ops().rotate(tensor.values_mut(), columns, &rotation)
    }
}

impl Module for RotaryEmbedding {
    fn forward(&self, pass: &mut Pass<'_>, mut input: Tensor) -> Result<Tensor> {
        self.rotate(pass, &mut input, 1.0)?;
        Ok(input)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        self.rotate(pass, &mut gradient, -1.0)?;
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::GradCheck;

    const HEADS: usize = 3;
    const DEPTH: usize = 6;

    /// Multiplies each pair, as a complex number, by e^(i angle).
    fn naive(x: &[f64], columns: usize, sequence: usize) -> Vec<f64> {
        let mut output = x.to_vec();
        for (row, head, pair) in (0..x.len() / columns).flat_map(|row| {
            (0..HEADS).flat_map(move |head| (0..DEPTH / 2).map(move |pair| (row, head, pair)))
        }) {
            let at = row * columns + head * DEPTH + pair;
            let angle = (row % sequence) as f64 * 10_000f64.powf(-2.0 * pair as f64 / DEPTH as f64);
            let (x, y) = (x[at], x[at + DEPTH / 2]);
            output[at] = x * angle.cos() - y * angle.sin();
            output[at + DEPTH / 2] = x * angle.sin() + y * angle.cos();
        }
        output
    }

    #[test]
    fn rotation_gradients_and_values_are_correct() {
        let columns = HEADS * DEPTH + 4;
        let make = |_: &mut _| RotaryEmbedding::new(RopeConfig::default(), HEADS, DEPTH);
        let check = GradCheck::new(make, 14, columns).sequence(7);
        check.check_gradients(2e-4);
        check.check_all_rows(1e-5, |x, _| naive(x, columns, 7));
    }

    #[test]
    fn llama_3_scaling_matches_published_frequencies() {
        let scaling =
            RopeScaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
        let plain = RopeConfig { base: 500_000.0, scaling: None };
        let scaled = RopeConfig { scaling: Some(scaling), ..plain };
        let (plain, scaled) = (plain.frequencies(128), scaled.frequencies(128));
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
    fn impossible_rotations_are_rejected() {
        let text = |config: RopeConfig, depth| config.check(depth).unwrap_err().to_string();
        assert!(text(RopeConfig::default(), 5).contains("even number of features per head, not 5"));
        assert!(text(RopeConfig { base: 0.0, scaling: None }, 4).contains("base of 0"));
        let scaling =
            RopeScaling { factor: 8.0, low_freq_factor: 4.0, high_freq_factor: 4.0, original_context: 64 };
        let config = RopeConfig { scaling: Some(scaling), ..RopeConfig::default() };
        assert!(text(config, 4).contains("between 4 and 4 turns"));
    }
}
