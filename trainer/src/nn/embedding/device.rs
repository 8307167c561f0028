//! Tables on a GPU.

use super::Embedding;
use crate::device::Device;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Indices;

impl Embedding {
    pub(super) fn forward_on(&self, device: &Device, pass: &mut Pass<'_>, indices: &[u32]) -> Result<Tensor> {
        if self.cut.is_some() {
            pass.expect_host("a table that ranks share (mesh.tensor)")?;
        }
        let compute = device.compute();
        let numbers = Indices::new(compute.stream().gpu(), indices, self.count, None)?;
        let (mut output, table) =
            (device.tensor(indices.len(), self.width)?, pass.weights_on(device, self.weight)?);
        compute.embed(output.view_mut(), table.view(..), &numbers)?;
        pass.save(numbers);
        Ok(output)
    }

    pub(super) fn backward_on(&self, device: &Device, pass: &mut Pass<'_>, gradient: &Tensor) -> Result<()> {
        let numbers: Indices = pass.restore();
        pass.accumulate_on(device, self.weight, |compute, into| {
            compute.embed_slopes(into, gradient.view(), &numbers)
        })
    }
}
