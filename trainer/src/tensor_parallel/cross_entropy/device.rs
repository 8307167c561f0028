//! Cross entropy of sharded classes on a GPU.

use crate::device::Device;
use crate::error::Result;
use crate::nn::sum_losses;
use crate::pass::Pass;
use crate::tensor::Tensor;
use crate::tensor_parallel::cross_entropy::VocabParallelCrossEntropy;
use unisono::{Max, Sum};
use unisono_cuda::device::compute::LocalTargets;

impl VocabParallelCrossEntropy {
    /// Computes the loss as the host version does.
    pub(crate) fn forward_scaled_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        mut logits: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        self.check(&logits, targets)?;
        let (rows, compute) = (logits.rows(), device.compute());
        let places: Vec<_> = targets.iter().map(|&target| self.local_class(target)).collect();
        let places = LocalTargets::new(compute.stream(), &places, logits.columns(), self.count)?;
        let (mut greatest, mut both) = (device.tensor(rows, 1)?, device.tensor(2, rows)?);
        compute.class_max(logits.view(), &places, greatest.view_mut())?;
        pass.timed_wait("greatest logits", || greatest.all_reduce(&self.group, Max))?;
        compute.class_exp(logits.view_mut(), &places, greatest.view(), both.view_mut())?;
        pass.timed_wait("sums of the loss", || both.all_reduce(&self.group, Sum))?;
        compute.class_backward(logits.view_mut(), &places, both.view(), greatest.view_mut(), share)?;
        let loss = sum_losses(device, &greatest, share)?;
        pass.save(logits);
        Ok(loss)
    }

    /// Returns this rank's index of a class.
    fn local_class(&self, target: u32) -> u32 {
        match self.classes.local_index(target as usize) {
            _ if Some(target) == self.ignore_index => LocalTargets::IGNORED,
            Some(place) => place as u32,
            None => LocalTargets::OTHER_RANK,
        }
    }
}
