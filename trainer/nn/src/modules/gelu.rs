//! Gaussian error linear units.

use super::Module;
use crate::error::Result;
use crate::ops::Activation;
use crate::pass::Pass;
use crate::tensor::Tensor;

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
    fn function(self) -> Activation {
        match self {
            Self::Exact => Activation::GeluExact,
            Self::Tanh => Activation::GeluTanh,
        }
    }
}

impl Module for Gelu {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let mut output = pass.tensor_in_place(input.rows(), input.columns())?;
        pass.ops().activation(self.function(), output.values_mut(), input.values())?;
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        let input: Tensor = pass.restore();
        pass.ops().activation_backward(self.function(), gradient.values_mut(), input.values())?;
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;

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
