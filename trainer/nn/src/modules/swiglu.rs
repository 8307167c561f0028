//! Gated linear units.

use super::Module;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Computes y = silu(gate) · up, with silu(x) = x σ(x) (Shazeer, "GLU variants improve
/// transformer", 2020).
///
/// (rows, gate | up) → (rows, half as many columns). Saves its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwiGlu;

impl Module for SwiGlu {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let width = input.columns() / 2;
        let mut output = pass.tensor_in_place(input.rows(), width)?;
        pass.ops().swiglu(output.values_mut(), input.values(), width)?;
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let mut result: Tensor = pass.restore();
        pass.ops().swiglu_backward(result.values_mut(), gradient.values(), gradient.columns())?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;

    #[test]
    fn swiglu_gradients_and_values_are_correct() {
        let check = GradCheck::new(|_| SwiGlu, 3, 22);
        check.check_gradients(2e-4);
        check.check_values(1e-6, |x, _| (0..11).map(|i| x[i] / (1.0 + (-x[i]).exp()) * x[i + 11]).collect());
    }
}
