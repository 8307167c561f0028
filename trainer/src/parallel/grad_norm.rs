//! Norm of a gradient in host or GPU memory.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::flat::ProcessGroup;
use crate::parallel::ExactSum;
use crate::parallel::strategy_core::StrategyCore;
use unisono::Sum;
use unisono::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Sum of squares of a gradient, computed in the memory that holds it.
pub(super) enum SquaredNorm {
    /// Sum on the host without rounding; the bits do not depend on the order.
    Exact(ExactSum),
    /// One 64-bit sum per bucket on a GPU. The last bits depend on the sharding of the gradient.
    Rounded(Vec<Buffer<f64>>),
}

impl SquaredNorm {
    /// Creates an empty sum in the memory that `memory` uses for flat buffers.
    pub(super) fn new(memory: &Allocator) -> Self {
        match memory.lane() {
            Some(_) => Self::Rounded(Vec::new()),
            None => Self::Exact(ExactSum::default()),
        }
    }
}

impl StrategyCore {
    /// Reduces the sums of squares over ranks and returns the root. The sum runs over the data
    /// parallel group if `sharded`, and over the tensor parallel group and the pipeline.
    pub(super) fn reduce_norm(&self, squares: SquaredNorm, sharded: bool) -> Result<f64> {
        match squares {
            SquaredNorm::Exact(squares) => self.exact_norm(squares, sharded),
            SquaredNorm::Rounded(parts) => {
                let mut sum = [self.rounded_sum(&parts, sharded)?];
                // Stages have different numbers of parts.
                self.pipeline.as_ref().map_or(Ok(()), |stages| stages.host().all_reduce(&mut sum, Sum))?;
                Ok(sum[0].sqrt())
            }
        }
    }

    /// Returns the sum over this stage's ranks.
    fn rounded_sum(&self, parts: &[Buffer<f64>], sharded: bool) -> Result<f64> {
        if parts.is_empty() {
            return Ok(0.0);
        }
        let lane = self.store.memory.lane().expect("on a GPU");
        let sums = gather_partial_sums(lane, parts, self.norm_groups(sharded))?;
        // Earlier GPU errors surface here at the latest.
        self.check()?;
        Ok(sums.into_iter().sum())
    }

    fn exact_norm(&self, mut squares: ExactSum, sharded: bool) -> Result<f64> {
        for ranks in self.norm_groups(sharded).chain(&self.pipeline) {
            ranks.host().all_reduce(squares.limbs_mut(), Sum)?;
        }
        Ok(squares.value().sqrt())
    }

    /// Returns the groups of one stage over which squares are summed.
    fn norm_groups(&self, sharded: bool) -> impl Iterator<Item = &ProcessGroup> {
        let data = self.group.iter().filter(move |_| sharded).map(|group| &group.size);
        data.chain(&self.tensor)
    }
}

/// Waits for the sums of all buckets and reduces them over all groups.
fn gather_partial_sums<'a>(
    lane: &Compute,
    parts: &[Buffer<f64>],
    groups: impl Iterator<Item = &'a ProcessGroup>,
) -> Result<Vec<f64>> {
    let mut all = lane.stream().alloc_uninit(parts.len())?;
    for (at, part) in parts.iter().enumerate() {
        lane.copy(all.view_mut(at..=at), part.view(..))?;
    }
    for ranks in groups {
        ranks.device()?.all_reduce(lane.stream(), &mut all, Sum)?;
    }
    Ok(all.to_vec(lane.stream())?)
}
