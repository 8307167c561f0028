//! Linear layers.

use super::{LinearInit, Module};
use crate::error::Result;
use crate::ops::{Mat, Values};
use crate::parameter::{Parameter, ParameterId, Registry};
use crate::pass::{Pass, WeightsView};
use crate::tensor::Tensor;

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
    /// Creates the layer with `weight` and, if `start` has one, `bias`, under the open path.
    ///
    /// # Panics
    /// Panics as [`Registry::add`] does.
    pub fn new(registry: &mut Registry, inputs: usize, outputs: usize, start: LinearInit) -> Self {
        let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight));
        let bias = start.bias.map(|init| registry.add(Parameter::new("bias", &[outputs], init)));
        Self { weight, bias, inputs, outputs }
    }

    /// Creates the layer from parameters that were added before, such as sharded ones. `inputs` and
    /// `outputs` are those of this rank's part, as are the shapes of the parameters.
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
    ///
    /// # Panics
    /// Panics as [`Registry::share_parameter`] does.
    pub fn tied(registry: &mut Registry, weight: ParameterId, inputs: usize, outputs: usize) -> Self {
        registry.share_parameter(weight);
        Self { weight, bias: None, inputs, outputs }
    }

    /// Computes [`Module::backward`] for some of the rows from their inputs. Call
    /// [`Linear::grads_ready`] after the last rows.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn backward_chunk(&self, pass: &mut Pass<'_>, input: Tensor, gradient: &Tensor) -> Result<Tensor> {
        self.add_grads(pass, &input, gradient)?;
        self.input_grad(pass, input, gradient)
    }

    /// Reports the gradients as ready, after all rows.
    ///
    /// # Errors
    /// Returns the error of a collective that becomes due.
    pub fn grads_ready(&self, pass: &mut Pass<'_>) -> Result<()> {
        // The bias was added to the registry after the weight, and strategies expect gradients in
        // reverse order (docs/decisions/0007-strategies-hear-three-events.md).
        self.bias.map_or(Ok(()), |bias| pass.grad_ready(bias))?;
        pass.grad_ready(self.weight)
    }

    /// Returns W.
    fn matrix<'a>(&self, weight: &'a WeightsView<'_>) -> Mat<Values<'a>> {
        Mat::new(weight.values(), self.outputs, self.inputs)
    }

    /// Adds to the gradients of bias and weight.
    fn add_grads(&self, pass: &mut Pass<'_>, input: &Tensor, gradient: &Tensor) -> Result<()> {
        if let Some(bias) = self.bias {
            pass.add(bias, |ops, sum| ops.add_rows(sum, gradient.values()))?;
        }
        // The product is added, because the gradient may already have parts of earlier
        // micro-batches or rows.
        pass.add(self.weight, |ops, sum| {
            let sum = Mat::new(sum, self.outputs, self.inputs);
            ops.matmul(sum, 1.0, 1.0, gradient.matrix().t(), input.matrix())
        })
    }

    /// Computes the gradient of the input in `result`, which may be the input itself.
    fn input_grad(&self, pass: &Pass<'_>, mut result: Tensor, gradient: &Tensor) -> Result<Tensor> {
        let weight = pass.weights_view(self.weight)?;
        pass.ops().matmul(result.matrix_mut(), 0.0, 1.0, gradient.matrix(), self.matrix(&weight))?;
        Ok(result)
    }
}

impl Module for Linear {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let mut output = pass.tensor_in_place(input.rows(), self.outputs)?;
        if let Some(bias) = self.bias {
            pass.ops().fill_rows(output.values_mut(), pass.weights_view(bias)?.values())?;
        }
        // The product adds to the rows of the bias, which saves a pass over the output.
        let beta = if self.bias.is_some() { 1.0 } else { 0.0 };
        let (product, weight) = (output.matrix_mut(), &pass.weights_view(self.weight)?);
        pass.ops().matmul(product, beta, 1.0, input.matrix(), self.matrix(weight).t())?;
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let input: Tensor = pass.restore();
        if pass.defers() {
            // The gradient of the weight needs the input later, so the result cannot take its
            // place.
            let room = pass.tensor_in_place(input.rows(), self.inputs)?;
            let of_input = self.input_grad(pass, room, &gradient)?;
            let linear = self.clone();
            pass.defer(move |pass| {
                linear.add_grads(pass, &input, &gradient)?;
                linear.grads_ready(pass)
            });
            return Ok(of_input);
        }
        // The gradient of the input takes the place of the input, which the gradient of the weight
        // needs. Ready gradients are also reduced while that of the input is computed.
        self.add_grads(pass, &input, &gradient)?;
        self.grads_ready(pass)?;
        self.input_grad(pass, input, &gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;

    #[test]
    fn linear_gradients_and_values_are_correct() {
        for start in [LinearInit::fan_in(5), LinearInit::normal(0.02).without_bias()] {
            let check = GradCheck::new(|registry| Linear::new(registry, 5, 7, start), 3, 5);
            check.check_gradients(1e-4);
            check.check_values(1e-6, |x, weights| {
                let product = |out: usize| (0..5).map(|i| x[i] * weights[0][out * 5 + i]).sum::<f64>();
                (0..7).map(|out| product(out) + weights.get(1).map_or(0.0, |bias| bias[out])).collect()
            });
        }
    }
}
