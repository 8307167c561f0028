//! Layer normalization.

use super::Module;
use super::vector::{add, sum, vectorized};
use crate::allocator::F32Vec;
use crate::error::Result;
use crate::nn::device_norm::DeviceNorm;
use crate::parameter::{Init, Parameter, ParameterId, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Norm;

/// Computes y = (x - mean) / √(variance + ε) · gain + bias for each row (Ba, Kiros, Hinton, "Layer
/// normalization", 2016).
///
/// (rows, width) → (rows, width). Saves its input, and two numbers per row.
pub struct LayerNorm {
    weight: ParameterId,
    bias: ParameterId,
    width: usize,
    epsilon: f32,
}

struct Saved {
    input: Tensor,
    /// Mean and inverse standard deviation of each row.
    moments: F32Vec,
}

impl LayerNorm {
    /// Creates the module with `weight` of ones and `bias` of zeros. GPT-2's ε is 1e-5.
    pub fn new(registry: &mut Registry, width: usize, epsilon: f32) -> Self {
        let weight = registry.add(Parameter::new("weight", &[width], Init::Ones));
        let bias = registry.add(Parameter::new("bias", &[width], Init::Zeros));
        Self { weight, bias, width, epsilon }
    }

    fn device_norm(&self) -> DeviceNorm {
        let &Self { weight, bias, width, epsilon } = self;
        DeviceNorm { norm: Norm::Layer, weight, bias: Some(bias), width, epsilon }
    }
}

impl Module for LayerNorm {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            return self.device_norm().forward(device, pass, input);
        }
        let mut output = pass.tensor(input.rows(), self.width);
        let mut moments = pass.floats(2 * input.rows());
        let (gain, bias) = (pass.weights(self.weight), pass.weights(self.bias));
        let rows = input.data().chunks_exact(self.width).zip(output.data_mut().chunks_exact_mut(self.width));
        vectorized(
            #[inline(always)]
            || {
                for ((from, to), moments) in rows.zip(moments.as_chunks_mut::<2>().0) {
                    *moments = row_moments(from, self.epsilon);
                    normalize(from, *moments, gain, bias, to);
                }
            },
        );
        pass.save(Saved { input, moments });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            return self.device_norm().backward(device, pass, gradient);
        }
        let Saved { input, moments } = pass.restore();
        let mut terms = pass.floats(2 * self.width);
        terms.fill(0.0);
        let (of_gain, of_bias) = terms.split_at_mut(self.width);
        let gain = pass.weights(self.weight);
        let rows =
            input.data().chunks_exact(self.width).zip(gradient.data_mut().chunks_exact_mut(self.width));
        vectorized(
            #[inline(always)]
            || {
                for ((from, row), moments) in rows.zip(moments.as_chunks::<2>().0) {
                    accumulate_grads(from, *moments, row, of_gain, of_bias);
                    input_grad(from, *moments, gain, row);
                }
            },
        );
        pass.accumulate(self.bias, |_, into| add(into, of_bias))?;
        pass.accumulate(self.weight, |_, into| add(into, of_gain))?;
        Ok(gradient)
    }
}

/// Returns the mean and inverse standard deviation.
#[inline(always)]
fn row_moments(row: &[f32], epsilon: f32) -> [f32; 2] {
    let count = row.len() as f32;
    let mean = sum(row, row, |x, _| x) / count;
    let variance = sum(row, row, |x, _| (x - mean) * (x - mean)) / count;
    [mean, 1.0 / (variance + epsilon).sqrt()]
}

#[inline(always)]
fn normalize(from: &[f32], [mean, rate]: [f32; 2], gain: &[f32], bias: &[f32], to: &mut [f32]) {
    for (((to, x), gain), bias) in to.iter_mut().zip(from).zip(gain).zip(bias) {
        *to = (x - mean) * rate * gain + bias;
    }
}

/// Adds one row's share to the gradients of gain and bias.
#[inline(always)]
fn accumulate_grads(from: &[f32], [mean, rate]: [f32; 2], row: &[f32], gain: &mut [f32], bias: &mut [f32]) {
    for (((gain, bias), x), dy) in gain.iter_mut().zip(bias).zip(from).zip(row) {
        *gain += dy * ((x - mean) * rate);
        *bias += dy;
    }
}

/// Replaces dy by dx = (g - mean of g - x̂ · mean of g x̂) / deviation, with the normalized row x̂
/// and g = dy · gain.
#[inline(always)]
fn input_grad(from: &[f32], [mean, rate]: [f32; 2], gain: &[f32], row: &mut [f32]) {
    row.iter_mut().zip(gain).for_each(|(dy, gain)| *dy *= gain);
    let count = row.len() as f32;
    let level = sum(row, row, |g, _| g) / count;
    let slope = sum(row, from, |g, x| g * ((x - mean) * rate)) / count;
    for (g, x) in row.iter_mut().zip(from) {
        *g = (*g - level - (x - mean) * rate * slope) * rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::grad_check::GradCheck;

    #[test]
    fn layer_norm_gradients_and_values_are_correct() {
        let check = GradCheck::new(|registry| LayerNorm::new(registry, 19, 1e-5), 3, 19);
        check.check_gradients(2e-4);
        check.check_values(1e-5, |x, weights| {
            let (gain, bias) = (&weights[0], &weights[1]);
            let mean = x.iter().sum::<f64>() / 19.0;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 19.0;
            (0..19).map(|at| (x[at] - mean) / (variance + 1e-5).sqrt() * gain[at] + bias[at]).collect()
        });
    }
}
