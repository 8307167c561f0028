//! LayerNorm and RMSNorm on a GPU.

use crate::device::Device;
use crate::error::Result;
use crate::parameter::ParameterId;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Norm;

/// Normalization with its parameters.
pub(super) struct DeviceNorm {
    pub(super) norm: Norm,
    pub(super) weight: ParameterId,
    pub(super) bias: Option<ParameterId>,
    pub(super) width: usize,
    pub(super) epsilon: f32,
}

struct Saved {
    input: Tensor,
    moments: Tensor,
}

impl DeviceNorm {
    pub(super) fn forward(&self, device: &Device, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let mut output = device.tensor(input.rows(), self.width)?;
        let mut moments = device.tensor(input.rows(), self.norm.moments_per_row())?;
        let gain = pass.weights_on(device, self.weight)?;
        let bias = self.bias.map(|bias| pass.weights_on(device, bias)).transpose()?;
        let (from, to) = ([input.view(), gain.view(..)], output.view_mut());
        let bias = bias.as_ref().map(|bias| bias.view(..));
        device.compute().normalize(from, bias, self.epsilon, to, moments.view_mut())?;
        pass.save(Saved { input, moments });
        Ok(output)
    }

    pub(super) fn backward(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        mut gradient: Tensor,
    ) -> Result<Tensor> {
        let Saved { input, moments } = pass.restore();
        if let Some(bias) = self.bias {
            pass.accumulate_on(device, bias, |compute, into| compute.add_rows(into, gradient.view()))?;
        }
        pass.accumulate_on(device, self.weight, |compute, into| {
            compute.normalize_backward_gain(self.norm, [input.view(), moments.view(), gradient.view()], into)
        })?;
        let gain = pass.weights_on(device, self.weight)?;
        let from = [input.view(), moments.view(), gain.view(..)];
        device.compute().normalize_backward(self.norm, from, gradient.view_mut())?;
        Ok(gradient)
    }
}
