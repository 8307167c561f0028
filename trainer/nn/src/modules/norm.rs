//! Normalization.

use super::Module;
use crate::error::Result;
use crate::ops::NormKind;
use crate::parameter::{Init, Parameter, ParameterId, Registry};
use crate::pass::{Pass, WeightsView};
use crate::tensor::Tensor;

/// Normalizes each row: LayerNorm, or RMSNorm.
///
/// (rows, width) → (rows, width). Saves its input, and two numbers or one per row.
pub struct Norm {
    kind: NormKind,
    weight: ParameterId,
    bias: Option<ParameterId>,
    width: usize,
    epsilon: f32,
}

struct Saved {
    input: Tensor,
    moments: Tensor,
}

impl Norm {
    /// Creates y = (x - mean) / √(variance + ε) · gain + bias (Ba, Kiros, Hinton, "Layer
    /// normalization", 2016), with `weight` of ones and `bias` of zeros. GPT-2's ε is 1e-5.
    pub fn layer(registry: &mut Registry, width: usize, epsilon: f32) -> Self {
        let norm = Self { kind: NormKind::Layer, ..Self::rms(registry, width, epsilon) };
        let bias = registry.add(Parameter::new("bias", &[width], Init::Zeros));
        Self { bias: Some(bias), ..norm }
    }

    /// Creates y = x / √(mean of x² + ε) · gain (Zhang, Sennrich, "Root mean square layer
    /// normalization", 2019), with `weight` of ones. Llama's ε is 1e-5.
    pub fn rms(registry: &mut Registry, width: usize, epsilon: f32) -> Self {
        let weight = registry.add(Parameter::new("weight", &[width], Init::Ones));
        Self { kind: NormKind::Rms, weight, bias: None, width, epsilon }
    }
}

impl Module for Norm {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let mut output = pass.tensor_in_place(input.rows(), self.width)?;
        let mut moments = pass.tensor_in_place(input.rows(), self.kind.moments_per_row())?;
        let gain = pass.weights_view(self.weight)?;
        let bias = self.bias.map(|bias| pass.weights_view(bias)).transpose()?;
        let (operands, bias) = ([input.values(), gain.values()], bias.as_ref().map(WeightsView::values));
        pass.ops().normalize(operands, bias, self.epsilon, output.values_mut(), moments.values_mut())?;
        pass.save(Saved { input, moments });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        let Saved { input, moments } = pass.restore();
        // The operation adds to `sums`, so they begin with zeros.
        let mut sums = pass.zeros_in_place(self.kind.moments_per_row(), self.width)?;
        let gain = pass.weights_view(self.weight)?;
        let operands = [input.values(), moments.values(), gain.values()];
        pass.ops().normalize_backward(self.kind, operands, gradient.values_mut(), sums.values_mut())?;
        let (width, sums) = (self.width, sums.values());
        // The bias was added to the registry after the gain, and strategies expect gradients in
        // reverse order.
        if let Some(bias) = self.bias {
            pass.accumulate(bias, |ops, total| ops.add(total, sums.slice(width..2 * width)))?;
        }
        pass.accumulate(self.weight, |ops, total| ops.add(total, sums.slice(0..width)))?;
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;

    #[test]
    fn layer_norm_gradients_and_values_are_correct() {
        let check = GradCheck::new(|registry| Norm::layer(registry, 19, 1e-5), 3, 19);
        check.check_gradients(2e-4);
        check.check_values(1e-5, |x, weights| {
            let (gain, bias) = (&weights[0], &weights[1]);
            let mean = x.iter().sum::<f64>() / 19.0;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 19.0;
            (0..19).map(|i| (x[i] - mean) / (variance + 1e-5).sqrt() * gain[i] + bias[i]).collect()
        });
    }

    #[test]
    fn rms_norm_gradients_and_values_are_correct() {
        let check = GradCheck::new(|registry| Norm::rms(registry, 19, 1e-5), 3, 19);
        check.check_gradients(2e-4);
        check.check_values(1e-5, |x, weights| {
            let square = x.iter().map(|x| x * x).sum::<f64>() / 19.0;
            (0..19).map(|i| x[i] / (square + 1e-5).sqrt() * weights[0][i]).collect()
        });
    }
}
