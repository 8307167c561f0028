//! Attention on a GPU.

use super::{CausalAttention, sequence_count};
use crate::device::Device;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::AttentionShape;

struct Saved {
    input: Tensor,
    log_sums: Tensor,
}

impl CausalAttention {
    fn heads_on(&self, pass: &Pass<'_>) -> AttentionShape {
        AttentionShape { count: self.heads, depth: self.head_dim, sequence: pass.sequence() }
    }

    pub(super) fn forward_on(&self, device: &Device, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        if self.kv_heads != self.heads {
            pass.expect_host("grouped-query attention (model.kv_heads)")?;
        }
        if pass.micro_sequences() > 1 {
            pass.expect_host("attention between micro-sequences (data.micro_sequences)")?;
        }
        if pass.sequence_group().is_some() {
            pass.expect_host("attention between chunks of sequences (mesh.sequence_data)")?;
        }
        let rows = pass.sequence() * sequence_count(pass, input.rows());
        let (mut output, mut log_sums) =
            (device.tensor(rows, self.width())?, device.tensor(rows, self.heads)?);
        let (to, sums) = (output.view_mut(), log_sums.view_mut());
        device.compute().attention(self.heads_on(pass), input.view(), to, sums)?;
        pass.save(Saved { input, log_sums });
        Ok(output)
    }

    pub(super) fn backward_on(
        &self,
        device: &Device,
        pass: &mut Pass<'_>,
        gradient: &Tensor,
    ) -> Result<Tensor> {
        let Saved { input, log_sums } = pass.restore();
        let mut slopes = device.tensor(input.rows(), input.columns())?;
        let mut room = device.tensor(log_sums.rows(), log_sums.columns())?;
        let (from, to) = ([input.view(), log_sums.view(), gradient.view()], slopes.view_mut());
        device.compute().attention_backward(self.heads_on(pass), from, to, room.view_mut())?;
        Ok(slopes)
    }
}
