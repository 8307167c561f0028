//! Linear layers on a GPU.

use super::Linear;
use crate::device::Device;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::{MatrixView, MatrixViewMut};

impl Linear {
    pub(super) fn forward_on(&self, device: &Device, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let (rows, compute) = (input.rows(), device.compute());
        let mut output = device.tensor(rows, self.outputs)?;
        if let Some(bias) = self.bias {
            compute.fill_rows(output.view_mut(), pass.weights_on(device, bias)?.view(..))?;
        }
        let weight = pass.weights_on(device, self.weight)?;
        let (x, w) = (input.view(), weight.view(..));
        let (x, w) =
            (MatrixView::new(&x, rows, self.inputs)?, MatrixView::new(&w, self.outputs, self.inputs)?);
        let (y, beta) = (output.view_mut(), if self.bias.is_some() { 1.0 } else { 0.0 });
        compute.matmul(MatrixViewMut::new(y, rows, self.outputs)?, beta, 1.0, x, w.t())?;
        pass.save(input);
        Ok(output)
    }

    pub(super) fn backward_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        input: Tensor,
        gradient: Tensor,
    ) -> Result<Tensor> {
        if pass.defers() {
            let room = device.tensor(input.rows(), self.inputs)?;
            let of_input = self.input_grad_on(device, pass, room, &gradient)?;
            let linear = self.clone();
            pass.defer(move |pass| {
                let device = pass.device().expect("the same pass");
                linear.accumulate_grads_on(device, pass, &input, &gradient)
            });
            return Ok(of_input);
        }
        self.accumulate_grads_on(device, pass, &input, &gradient)?;
        self.input_grad_on(device, pass, input, &gradient)
    }

    /// Adds to the gradients of bias and weight.
    fn accumulate_grads_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        input: &Tensor,
        gradient: &Tensor,
    ) -> Result<()> {
        if let Some(bias) = self.bias {
            pass.accumulate_on(device, bias, |compute, into| compute.add_rows(into, gradient.view()))?;
        }
        let (rows, slopes) = (input.rows(), gradient.view());
        let dy = MatrixView::new(&slopes, rows, self.outputs)?;
        pass.accumulate_on(device, self.weight, |compute, into| {
            let (into, x) = (MatrixViewMut::new(into, self.outputs, self.inputs)?, input.view());
            compute.matmul(into, 1.0, 1.0, dy.t(), MatrixView::new(&x, rows, self.inputs)?)
        })
    }

    /// Computes the gradient of the input in `into`, which may be the input itself.
    fn input_grad_on(
        &self,
        device: &Device,
        pass: &Pass<'_>,
        mut into: Tensor,
        gradient: &Tensor,
    ) -> Result<Tensor> {
        let (rows, slopes) = (into.rows(), gradient.view());
        let dy = MatrixView::new(&slopes, rows, self.outputs)?;
        let weight = pass.weights_on(device, self.weight)?;
        let (w, dx) = (weight.view(..), MatrixViewMut::new(into.view_mut(), rows, self.inputs)?);
        device.compute().matmul(dx, 0.0, 1.0, dy, MatrixView::new(&w, self.outputs, self.inputs)?)?;
        Ok(into)
    }
}
