//! Embedding tables on a GPU.

use super::Embedding;
use crate::device::Device;
use crate::error::Result;
use crate::parameter::ShardSpec;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Indices;

/// Marks a row of another rank.
const NOT_LOCAL: u32 = u32::MAX;

impl Embedding {
    pub(super) fn forward_on(&self, device: &Device, pass: &mut Pass<'_>, indices: &[u32]) -> Result<Tensor> {
        let compute = device.compute();
        let place = |&index: &u32| self.local_row(index).map_or(NOT_LOCAL, |place| place as u32);
        let places: Vec<_> = indices.iter().map(place).collect();
        let local = self.sharded.as_ref().map_or(self.count, ShardSpec::local_size);
        let numbers = Indices::new(compute.stream(), &places, local, Some(NOT_LOCAL))?;
        let (mut output, table) =
            (device.tensor(indices.len(), self.width)?, pass.weights_on(device, self.weight)?);
        compute.embed(output.view_mut(), table.view(..), &numbers)?;
        pass.save(numbers);
        Ok(output)
    }

    pub(super) fn backward_on(&self, device: &Device, pass: &mut Pass<'_>, gradient: &Tensor) -> Result<()> {
        let numbers: Indices = pass.restore();
        pass.accumulate_on(device, self.weight, |compute, into| {
            compute.embed_backward(into, gradient.view(), &numbers)
        })
    }
}
