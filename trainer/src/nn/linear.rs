//! Linear maps.

use super::vector::add_rows;
use super::{Module, Start};
use crate::error::Result;
use crate::parameter::{Parameter, ParameterId, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::{Matrix, MatrixMut, matmul};

/// y = x Wᵀ + b, with W of outputs × inputs.
///
/// (rows, inputs) → (rows, outputs). Keeps its input.
pub struct Linear {
    weight: ParameterId,
    bias: Option<ParameterId>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// With `weight` and, if `start` has one, `bias`.
    pub fn new(registry: &mut Registry, inputs: usize, outputs: usize, start: Start) -> Self {
        let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight));
        let bias = start.bias.map(|init| registry.add(Parameter::new("bias", &[outputs], init)));
        Self { weight, bias, inputs, outputs }
    }

    /// Of parameters that were added already: cut ones.
    pub fn of(weight: ParameterId, bias: Option<ParameterId>, inputs: usize, outputs: usize) -> Self {
        Self { weight, bias, inputs, outputs }
    }

    /// Without bias, with the weight of an earlier unit: a head tied to the embedding.
    pub fn tied(registry: &mut Registry, weight: ParameterId, inputs: usize, outputs: usize) -> Self {
        registry.borrow(weight);
        Self { weight, bias: None, inputs, outputs }
    }

    /// Adds to the gradients of bias and weight.
    fn accumulate(&self, pass: &mut Pass<'_>, input: &Tensor, gradient: &Tensor) -> Result<()> {
        let (rows, threads) = (input.rows(), pass.threads());
        if let Some(bias) = self.bias {
            pass.accumulate(bias, |_, into| add_rows(into, gradient.data()))?;
        }
        pass.accumulate(self.weight, |_, into| {
            let into = MatrixMut::new(into, self.outputs, self.inputs);
            let gradient = Matrix::new(gradient.data(), rows, self.outputs);
            matmul(into, 1.0, 1.0, gradient.t(), Matrix::new(input.data(), rows, self.inputs), threads);
        })
    }
}

impl Module for Linear {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let rows = input.rows();
        let mut output = pass.tensor(rows, self.outputs);
        if let Some(bias) = self.bias {
            let bias = pass.weights(bias);
            output.data_mut().chunks_exact_mut(self.outputs).for_each(|row| row.copy_from_slice(bias));
        }
        let beta = if self.bias.is_some() { 1.0 } else { 0.0 };
        let weight = Matrix::new(pass.weights(self.weight), self.outputs, self.inputs);
        let into = MatrixMut::new(output.data_mut(), rows, self.outputs);
        matmul(into, beta, 1.0, Matrix::new(input.data(), rows, input.columns()), weight.t(), pass.threads());
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let input: Tensor = pass.restore();
        self.accumulate(pass, &input, &gradient)?;
        let mut result = input;
        let rows = result.rows();
        let weight = Matrix::new(pass.weights(self.weight), self.outputs, self.inputs);
        let into = MatrixMut::new(result.data_mut(), rows, self.inputs);
        matmul(into, 0.0, 1.0, Matrix::new(gradient.data(), rows, self.outputs), weight, pass.threads());
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::check::Check;

    #[test]
    fn gradients_and_values() {
        for start in [Start::fan_in(5), Start::normal(0.02).without_bias()] {
            let check = Check::new(|registry| Linear::new(registry, 5, 7, start), 3, 5);
            check.gradients(1e-4);
            check.values(1e-6, |x, weights| {
                let product = |out: usize| (0..5).map(|at| x[at] * weights[0][out * 5 + at]).sum::<f64>();
                (0..7).map(|out| product(out) + weights.get(1).map_or(0.0, |bias| bias[out])).collect()
            });
        }
    }
}
