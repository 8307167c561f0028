//! Linear layers.

mod device;

use super::vector::add_rows;
use super::{LinearInit, Module};
use crate::error::Result;
use crate::parameter::{Parameter, ParameterId, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::{Matrix, MatrixMut, matmul};

/// Computes y = x Wᵀ + b, with W of outputs × inputs.
///
/// (rows, inputs) → (rows, outputs). Saves its input.
#[derive(Clone)]
pub struct Linear {
    weight: ParameterId,
    bias: Option<ParameterId>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Creates the layer with `weight` and, if `start` has one, `bias`.
    pub fn new(registry: &mut Registry, inputs: usize, outputs: usize, start: LinearInit) -> Self {
        let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight));
        let bias = start.bias.map(|init| registry.add(Parameter::new("bias", &[outputs], init)));
        Self { weight, bias, inputs, outputs }
    }

    /// Creates the layer from parameters that were added before, such as sharded ones.
    pub fn from_parameters(
        weight: ParameterId,
        bias: Option<ParameterId>,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        Self { weight, bias, inputs, outputs }
    }

    /// Creates a layer without bias that uses the weight of an earlier unit: a head tied to the
    /// embedding.
    pub fn tied(registry: &mut Registry, weight: ParameterId, inputs: usize, outputs: usize) -> Self {
        registry.share_parameter(weight);
        Self { weight, bias: None, inputs, outputs }
    }

    /// Computes [`Module::backward`] for some of the rows from their inputs. Call
    /// [`Linear::grads_ready`] after the last rows.
    pub fn backward_chunk(&self, pass: &mut Pass<'_>, input: Tensor, gradient: &Tensor) -> Tensor {
        if let Some(bias) = self.bias {
            pass.add(bias, |_, into| add_rows(into, gradient.data()));
        }
        let threads = pass.threads();
        pass.add(self.weight, |_, into| self.accumulate_weight_grad(into, &input, gradient, threads));
        self.input_grad(pass, input, gradient)
    }

    /// Reports the gradients as ready, after all rows.
    ///
    /// # Errors
    /// Returns the error of a collective that becomes due.
    pub fn grads_ready(&self, pass: &mut Pass<'_>) -> Result<()> {
        self.bias.map_or(Ok(()), |bias| pass.grad_ready(bias))?;
        pass.grad_ready(self.weight)
    }

    /// Adds to the gradient of the weight.
    fn accumulate_weight_grad(&self, into: &mut [f32], input: &Tensor, gradient: &Tensor, threads: usize) {
        let into = MatrixMut::new(into, self.outputs, self.inputs);
        let input = Matrix::new(input.data(), input.rows(), self.inputs);
        let gradient = Matrix::new(gradient.data(), gradient.rows(), self.outputs);
        matmul(into, 1.0, 1.0, gradient.t(), input, threads);
    }

    /// Computes the gradient of the input in `into`, which may be the input itself.
    fn input_grad(&self, pass: &Pass<'_>, mut into: Tensor, gradient: &Tensor) -> Tensor {
        let rows = into.rows();
        let weight = Matrix::new(pass.weights(self.weight), self.outputs, self.inputs);
        let target = MatrixMut::new(into.data_mut(), rows, self.inputs);
        matmul(target, 0.0, 1.0, Matrix::new(gradient.data(), rows, self.outputs), weight, pass.threads());
        into
    }

    /// Adds to the gradients of bias and weight.
    fn accumulate(&self, pass: &mut Pass<'_>, input: &Tensor, gradient: &Tensor) -> Result<()> {
        let threads = pass.threads();
        if let Some(bias) = self.bias {
            pass.accumulate(bias, |_, into| add_rows(into, gradient.data()))?;
        }
        pass.accumulate(self.weight, |_, into| self.accumulate_weight_grad(into, input, gradient, threads))
    }
}

impl Module for Linear {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            return self.forward_on(device, pass, input);
        }
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
        if let Some(device) = pass.device() {
            return self.backward_on(device, pass, input, gradient);
        }
        if pass.defers() {
            let of_input = self.input_grad(pass, pass.tensor(input.rows(), self.inputs), &gradient);
            let linear = self.clone();
            pass.defer(move |pass| linear.accumulate(pass, &input, &gradient));
            return Ok(of_input);
        }
        self.accumulate(pass, &input, &gradient)?;
        Ok(self.input_grad(pass, input, &gradient))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::grad_check::GradCheck;

    #[test]
    fn linear_gradients_and_values_are_correct() {
        for start in [LinearInit::fan_in(5), LinearInit::normal(0.02).without_bias()] {
            let check = GradCheck::new(|registry| Linear::new(registry, 5, 7, start), 3, 5);
            check.check_gradients(1e-4);
            check.check_values(1e-6, |x, weights| {
                let product = |out: usize| (0..5).map(|at| x[at] * weights[0][out * 5 + at]).sum::<f64>();
                (0..7).map(|out| product(out) + weights.get(1).map_or(0.0, |bias| bias[out])).collect()
            });
        }
    }
}
