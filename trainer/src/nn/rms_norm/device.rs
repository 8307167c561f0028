//! The norm on a GPU.

use super::RmsNorm;
use crate::device::Device;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Norm;

struct Saved {
    input: Tensor,
    moments: Tensor,
}

impl RmsNorm {
    pub(super) fn forward_on(&self, device: &Device, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let mut output = device.tensor(input.rows(), self.width)?;
        let mut moments = device.tensor(input.rows(), Norm::Rms.moments())?;
        let gain = pass.weights_on(device, self.weight)?;
        let (from, to) = ([input.view(), gain.view(..)], output.view_mut());
        device.compute().normalise(from, None, self.epsilon, to, moments.view_mut())?;
        pass.save(Saved { input, moments });
        Ok(output)
    }

    pub(super) fn backward_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        mut gradient: Tensor,
    ) -> Result<Tensor> {
        let Saved { input, moments } = pass.restore();
        pass.accumulate_on(device, self.weight, |compute, into| {
            compute.normalise_gain(Norm::Rms, [input.view(), moments.view(), gradient.view()], into)
        })?;
        let gain = pass.weights_on(device, self.weight)?;
        let from = [input.view(), moments.view(), gain.view(..)];
        device.compute().normalise_slopes(Norm::Rms, from, gradient.view_mut())?;
        Ok(gradient)
    }
}
