//! Gated linear units.

use super::Module;
use super::vector::{sigmoid, vectorized};
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
        if let Some(device) = pass.device() {
            let mut output = device.tensor(input.rows(), width)?;
            device.compute().swiglu(output.view_mut(), input.view(), width)?;
            pass.save(input);
            return Ok(output);
        }
        let mut output = pass.tensor(input.rows(), width);
        vectorized(
            #[inline(always)]
            || {
                for (to, from) in
                    output.data_mut().chunks_exact_mut(width).zip(input.data().chunks_exact(2 * width))
                {
                    let (gate, up) = from.split_at(width);
                    to.iter_mut().zip(gate).zip(up).for_each(|((y, x), up)| *y = x * sigmoid(*x) * up);
                }
            },
        );
        pass.save(input);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let mut result: Tensor = pass.restore();
        let width = gradient.columns();
        if let Some(device) = pass.device() {
            device.compute().swiglu_backward(result.view_mut(), gradient.view(), width)?;
            return Ok(result);
        }
        vectorized(
            #[inline(always)]
            || {
                for (row, dy) in
                    result.data_mut().chunks_exact_mut(2 * width).zip(gradient.data().chunks_exact(width))
                {
                    input_grad(row, dy);
                }
            },
        );
        Ok(result)
    }
}

/// Writes the gradients of gate and up in their place.
#[inline(always)]
fn input_grad(row: &mut [f32], dy: &[f32]) {
    let (gate, up) = row.split_at_mut(dy.len());
    for ((gate, up), dy) in gate.iter_mut().zip(up).zip(dy) {
        let (x, s) = (*gate, sigmoid(*gate));
        *gate = dy * *up * (s + x * s * (1.0 - s));
        *up = dy * (x * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::grad_check::GradCheck;

    #[test]
    fn swiglu_gradients_and_values_are_correct() {
        let check = GradCheck::new(|_| SwiGlu, 3, 22);
        check.check_gradients(2e-4);
        check.check_values(1e-6, |x, _| {
            (0..11).map(|at| x[at] / (1.0 + (-x[at]).exp()) * x[at + 11]).collect()
        });
    }
}
