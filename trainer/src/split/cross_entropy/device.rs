//! Cross entropy of classes that are cut between ranks, on a GPU.

use super::SplitCrossEntropy;
use crate::device::Device;
use crate::error::Result;
use crate::nn::added_up;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::{Max, Sum};
use unisono_cuda::device::compute::Places;

impl SplitCrossEntropy {
    /// As on the host.
    pub(super) fn shared_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        mut logits: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        self.check(&logits, targets)?;
        let (rows, compute) = (logits.rows(), device.compute());
        let places: Vec<_> = targets.iter().map(|&target| self.place(target)).collect();
        let places = Places::new(compute.stream(), &places, logits.columns(), self.count)?;
        let (mut greatest, mut both) = (device.tensor(rows, 1)?, device.tensor(2, rows)?);
        compute.class_greatest(logits.view(), &places, greatest.view_mut())?;
        pass.wait("greatest logits", || greatest.all_reduce(&self.group, Max))?;
        compute.class_powers(logits.view_mut(), &places, greatest.view(), both.view_mut())?;
        pass.wait("sums of the loss", || both.all_reduce(&self.group, Sum))?;
        compute.class_slopes(logits.view_mut(), &places, both.view(), greatest.view_mut(), share)?;
        let loss = added_up(device, &greatest, share)?;
        pass.save(logits);
        Ok(loss)
    }

    /// Where this rank has a class.
    fn place(&self, target: u32) -> u32 {
        match self.classes.in_part(target as usize) {
            _ if Some(target) == self.ignore => Places::NOWHERE,
            Some(place) => place as u32,
            None => Places::ELSEWHERE,
        }
    }
}
