//! Root mean square normalization.

use super::Module;
use super::vector::{add, sum, vectorized};
use crate::allocator::F32Vec;
use crate::error::Result;
use crate::nn::device_norm::DeviceNorm;
use crate::parameter::{Init, Parameter, ParameterId, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Norm;

/// Computes y = x / √(mean of x² + ε) · gain for each row (Zhang, Sennrich, "Root mean square layer
/// normalization", 2019).
///
/// (rows, width) → (rows, width). Saves its input, and one number per row.
pub struct RmsNorm {
    weight: ParameterId,
    width: usize,
    epsilon: f32,
}

struct Saved {
    input: Tensor,
    /// Inverse root mean square of each row.
    inverse_rms: F32Vec,
}

impl RmsNorm {
    /// Creates the module with `weight` of ones. Llama's ε is 1e-5.
    pub fn new(registry: &mut Registry, width: usize, epsilon: f32) -> Self {
        Self { weight: registry.add(Parameter::new("weight", &[width], Init::Ones)), width, epsilon }
    }

    fn device_norm(&self) -> DeviceNorm {
        let &Self { weight, width, epsilon } = self;
        DeviceNorm { norm: Norm::Rms, weight, bias: None, width, epsilon }
    }
}

impl Module for RmsNorm {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            return self.device_norm().forward(device, pass, input);
        }
        let mut output = pass.tensor(input.rows(), self.width);
        let mut rates = pass.floats(input.rows());
        let gain = pass.weights(self.weight);
        let rows = input.data().chunks_exact(self.width).zip(output.data_mut().chunks_exact_mut(self.width));
        vectorized(
            #[inline(always)]
            || {
                for ((from, to), rate) in rows.zip(rates.iter_mut()) {
                    let square = sum(from, from, |x, _| x * x) / self.width as f32;
                    *rate = 1.0 / (square + self.epsilon).sqrt();
                    to.iter_mut().zip(from).zip(gain).for_each(|((to, x), gain)| *to = x * *rate * gain);
                }
            },
        );
        pass.save(Saved { input, inverse_rms: rates });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            return self.device_norm().backward(device, pass, gradient);
        }
        let Saved { input, inverse_rms: rates } = pass.restore();
        let mut of_gain = pass.floats(self.width);
        of_gain.fill(0.0);
        let gain = pass.weights(self.weight);
        let rows =
            input.data().chunks_exact(self.width).zip(gradient.data_mut().chunks_exact_mut(self.width));
        vectorized(
            #[inline(always)]
            || {
                for ((from, row), rate) in rows.zip(rates.iter()) {
                    accumulate_grads(from, *rate, row, &mut of_gain);
                    input_grad(from, *rate, gain, row);
                }
            },
        );
        pass.accumulate(self.weight, |_, into| add(into, &of_gain))?;
        Ok(gradient)
    }
}

/// Adds one row's share to the gradient of the gain.
#[inline(always)]
fn accumulate_grads(from: &[f32], rate: f32, row: &[f32], gain: &mut [f32]) {
    for ((gain, x), dy) in gain.iter_mut().zip(from).zip(row) {
        *gain += dy * (x * rate);
    }
}

/// Replaces dy by dx = (g - x̂ · mean of g x̂) · rate, with the normalized row x̂ and g = dy ·
/// gain.
#[inline(always)]
fn input_grad(from: &[f32], rate: f32, gain: &[f32], row: &mut [f32]) {
    row.iter_mut().zip(gain).for_each(|(dy, gain)| *dy *= gain);
    let slope = sum(row, from, |g, x| g * (x * rate)) / row.len() as f32;
    for (g, x) in row.iter_mut().zip(from) {
        *g = (*g - x * rate * slope) * rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::grad_check::GradCheck;

    #[test]
    fn rms_norm_gradients_and_values_are_correct() {
        let check = GradCheck::new(|registry| RmsNorm::new(registry, 19, 1e-5), 3, 19);
        check.check_gradients(2e-4);
        check.check_values(1e-5, |x, weights| {
            let square = x.iter().map(|x| x * x).sum::<f64>() / 19.0;
            (0..19).map(|at| x[at] / (square + 1e-5).sqrt() * weights[0][at]).collect()
        });
    }
}
