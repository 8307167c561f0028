//! Gaussian error linear units.

use super::Module;
use super::vector::{erf, exp, sigmoid, vectorized};
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use std::f32::consts::FRAC_1_SQRT_2;
use unisono_cuda::device::compute::Activation;

/// Computes y = x Φ(x) with the normal distribution Φ (Hendrycks, Gimpel, "Gaussian error linear
/// units", 2016).
///
/// (rows, columns) → (rows, columns). Saves its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// Computes Φ by the error function.
    Exact,
    /// Approximates Φ(x) ≈ (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³), as in GPT-2.
    Tanh,
}

impl Gelu {
    /// Returns the activation of the GPU kernels.
    fn activation(self) -> Activation {
        match self {
            Self::Exact => Activation::GeluExact,
            Self::Tanh => Activation::GeluTanh,
        }
    }
}

impl Module for Gelu {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            let mut output = device.tensor(input.rows(), input.columns())?;
            device.compute().activation(self.activation(), output.view_mut(), input.view())?;
            pass.save(input);
            return Ok(output);
        }
        let mut output = pass.tensor(input.rows(), input.columns());
        let pairs = output.data_mut().iter_mut().zip(input.data());
        match self {
            Gelu::Exact => vectorized(
                #[inline(always)]
                || pairs.for_each(|(y, x)| *y = x * normal(*x)),
            ),
            Gelu::Tanh => vectorized(
                #[inline(always)]
                || pairs.for_each(|(y, x)| *y = x * sigmoid(twice_u(*x))),
            ),
        }
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        let input: Tensor = pass.restore();
        if let Some(device) = pass.device() {
            device.compute().activation_backward(self.activation(), gradient.view_mut(), input.view())?;
            return Ok(gradient);
        }
        let pairs = gradient.data_mut().iter_mut().zip(input.data());
        match self {
            Gelu::Exact => vectorized(
                #[inline(always)]
                || pairs.for_each(|(dy, x)| *dy *= exact_derivative(*x)),
            ),
            Gelu::Tanh => vectorized(
                #[inline(always)]
                || pairs.for_each(|(dy, x)| *dy *= tanh_derivative(*x)),
            ),
        }
        Ok(gradient)
    }
}

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// Returns 2 u. Its sigmoid equals (1 + tanh u) / 2, and keeps its accuracy for small values.
#[inline(always)]
fn twice_u(x: f32) -> f32 {
    2.0 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x)
}

#[inline(always)]
fn tanh_derivative(x: f32) -> f32 {
    let s = sigmoid(twice_u(x));
    let slope_of_twice_u = 2.0 * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
    s + x * s * (1.0 - s) * slope_of_twice_u
}

/// Returns Φ.
#[inline(always)]
fn normal(x: f32) -> f32 {
    0.5 + 0.5 * erf(x * FRAC_1_SQRT_2)
}

#[inline(always)]
fn exact_derivative(x: f32) -> f32 {
    normal(x) + x * (0.5 * FRAC_1_SQRT_2 * std::f32::consts::FRAC_2_SQRT_PI) * exp(-0.5 * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::grad_check::GradCheck;

    #[test]
    fn gelu_gradients_and_values_are_correct() {
        let exact = GradCheck::new(|_| Gelu::Exact, 3, 21);
        exact.check_gradients(2e-4);
        exact.check_values(1e-6, |x, _| {
            x.iter().map(|x| x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)).collect()
        });
        let tanh = GradCheck::new(|_| Gelu::Tanh, 3, 21);
        tanh.check_gradients(2e-4);
        tanh.check_values(1e-6, |x, _| {
            let root = std::f64::consts::FRAC_2_PI.sqrt();
            x.iter().map(|x| 0.5 * x * (1.0 + libm::tanh(root * (x + 0.044715 * x.powi(3))))).collect()
        });
    }
}
