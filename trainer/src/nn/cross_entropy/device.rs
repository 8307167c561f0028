//! Cross entropy on a GPU.

use super::CrossEntropy;
use crate::device::Device;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Indices;

impl CrossEntropy {
    /// Computes the loss as the host version does.
    pub(super) fn forward_scaled_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        mut logits: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        let compute = device.compute();
        let targets = Indices::new(compute.stream(), targets, logits.columns(), self.ignore_index)?;
        let mut losses = device.tensor(logits.rows(), 1)?;
        compute.cross_entropy(logits.view_mut(), &targets, losses.view_mut(), share)?;
        let loss = sum_losses(device, &losses, share)?;
        pass.save(logits);
        Ok(loss)
    }
}

/// Returns `share` times the sum of the row losses, added by the host in order, in f64.
pub(crate) fn sum_losses(device: &Device, losses: &Tensor, share: f32) -> Result<f32> {
    let losses = losses.view().to_vec(device.compute().stream())?;
    Ok((losses.into_iter().map(f64::from).sum::<f64>() * f64::from(share)) as f32)
}
