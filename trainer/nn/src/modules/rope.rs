//! Rotary position embeddings.

mod scaling;

pub use scaling::{Llama3Scaling, RopeScaling, YarnScaling};

use super::{Module, row_positions};
use crate::error::{Error, Result};
use crate::ops::Rotation;
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Frequencies of rotary position embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base θ: pair i of a head with d features turns by θ^(−2i/d) per position.
    pub base: f64,
    /// Slower rotation, for contexts longer than those of pretraining.
    pub scaling: Option<RopeScaling>,
}

impl Default for RopeConfig {
    /// Returns the base of the original publication, without scaling.
    fn default() -> Self {
        Self { base: 10_000.0, scaling: None }
    }
}

impl RopeConfig {
    /// Checks that heads of `head_dim` features can be rotated.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the number of features, the base or the value of the scaling that
    /// is impossible.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        if !head_dim.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "rotary positions need an even number of features per head, not {head_dim}"
            )));
        }
        if !(self.base.is_finite() && self.base > 0.0) {
            return Err(Error::invalid(format!("a rotary base of {}: it must be positive", self.base)));
        }
        self.scaling.map_or(Ok(()), |scaling| scaling.check(self.base))
    }

    /// Returns the angle per position of each pair of features.
    fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let frequency = |pair: usize| self.base.powf(-((2 * pair) as f64) / head_dim as f64);
        let mut frequencies: Vec<f64> = (0..head_dim / 2).map(frequency).collect();
        if let Some(scaling) = self.scaling {
            scaling.apply(self.base, &mut frequencies);
        }
        frequencies.into_iter().map(|frequency| frequency as f32).collect()
    }
}

/// Rotates pairs of features of queries and keys by their position times a frequency (Su et al.,
/// "RoFormer: enhanced transformer with rotary position embedding", 2021). Feature i of a head with
/// d features is paired with feature i + d/2, as in Hugging Face's Llama. A scaling may multiply
/// rotated queries and keys by a factor.
///
/// (rows, queries | keys | values) → the same shape, in place. Saves nothing.
pub struct RotaryEmbedding {
    frequencies: Vec<f32>,
    scale: f32,
    heads: usize,
    head_dim: usize,
}

impl RotaryEmbedding {
    /// Creates the module for this rank's `heads` heads of queries and keys together.
    pub fn new(config: RopeConfig, heads: usize, head_dim: usize) -> Self {
        let scale = config.scaling.map_or(1.0, |scaling| scaling.rotation_scale());
        Self { frequencies: config.frequencies(head_dim), scale: scale as f32, heads, head_dim }
    }

    /// Rotates by `sign` times each row's angles.
    fn rotate(&self, pass: &Pass<'_>, tensor: &mut Tensor, sign: f32) -> Result<()> {
        let positions = row_positions(pass);
        let rotation = Rotation {
            frequencies: &self.frequencies,
            sign,
            scale: self.scale,
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
        // The gradient of a rotation is the rotation by the opposite angle, so backward needs no
        // saved value.
        self.rotate(pass, &mut gradient, -1.0)?;
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;

    const HEADS: usize = 3;
    const DEPTH: usize = 6;

    /// Multiplies each pair, as a complex number, by e^(i angle).
    fn naive(x: &[f64], columns: usize, sequence: usize) -> Vec<f64> {
        let mut output = x.to_vec();
        for (row, head, pair) in (0..x.len() / columns).flat_map(|row| {
            (0..HEADS).flat_map(move |head| (0..DEPTH / 2).map(move |pair| (row, head, pair)))
        }) {
            let first = row * columns + head * DEPTH + pair;
            let angle = (row % sequence) as f64 * 10_000f64.powf(-2.0 * pair as f64 / DEPTH as f64);
            let (x, y) = (x[first], x[first + DEPTH / 2]);
            output[first] = x * angle.cos() - y * angle.sin();
            output[first + DEPTH / 2] = x * angle.sin() + y * angle.cos();
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
    fn scaled_rotation_gradients_and_values_are_correct() {
        let yarn = YarnScaling {
            factor: 2.0,
            original_context: 7,
            beta_fast: 1.0,
            beta_slow: 0.1,
            attention_factor: Some(1.25),
            truncate: true,
        };
        let config = RopeConfig { scaling: Some(RopeScaling::Yarn(yarn)), ..RopeConfig::default() };
        let columns = HEADS * DEPTH;
        let check = GradCheck::new(|_| RotaryEmbedding::new(config, HEADS, DEPTH), 7, columns);
        check.check_gradients(2e-4);
        // The first position is not rotated.
        let (output, _) = check.forward_and_backward();
        let input = crate::modules::random_values(99, 7 * columns);
        assert!(output[..columns].iter().zip(&input).all(|(found, x)| *found == 1.25 * x));
    }

    #[test]
    fn impossible_rotations_are_rejected() {
        let text = |config: RopeConfig, depth| config.check(depth).unwrap_err().to_string();
        assert!(text(RopeConfig::default(), 5).contains("even number of features per head, not 5"));
        assert!(text(RopeConfig { base: 0.0, scaling: None }, 4).contains("base of 0"));
        let scaling = RopeScaling::Linear { factor: 0.0 };
        let config = RopeConfig { scaling: Some(scaling), ..RopeConfig::default() };
        assert!(text(config, 4).contains("linear rotary scaling by 0"));
    }
}
