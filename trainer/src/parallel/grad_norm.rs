//! The norm of a gradient, wherever it lies.

use crate::allocator::Allocator;
use crate::error::Result;
use crate::flat::ProcessGroup;
use crate::parallel::ExactSum;
use crate::parallel::strategy_core::StrategyCore;
use unisono::Sum;
use unisono::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Squares of a gradient, added up where it lies.
pub(super) enum SquaredNorm {
    /// By the host: without rounding, to the same bits whoever adds what.
    Exact(ExactSum),
    /// By a GPU, in 64 bits: a sum for each bucket, which depends in its last bits on how the gradient is divided.
    Rounded(Vec<Buffer<f64>>),
}

impl SquaredNorm {
    /// Of nothing yet, where `memory` keeps flat numbers.
    pub(super) fn new(memory: &Allocator) -> Self {
        match memory.lane() {
            Some(_) => Self::Rounded(Vec::new()),
            None => Self::Exact(ExactSum::default()),
        }
    }
}

impl StrategyCore {
    /// The root of a sum of squares of which every rank has a part: of the data-parallel group, if `sharded`, and of the
    /// tensor-parallel one.
    pub(super) fn reduce_norm(&self, squares: SquaredNorm, sharded: bool) -> Result<f64> {
        match squares {
            SquaredNorm::Exact(squares) => self.exact_norm(squares, sharded),
            SquaredNorm::Rounded(parts) if parts.is_empty() => Ok(0.0),
            SquaredNorm::Rounded(parts) => {
                let lane = self.store.memory.lane().expect("on a GPU");
                let sums = gather_partial_sums(lane, &parts, self.norm_groups(sharded))?;
                // What went wrong before it comes to light here, at the latest.
                self.check()?;
                Ok(sums.into_iter().sum::<f64>().sqrt())
            }
        }
    }

    fn exact_norm(&self, mut squares: ExactSum, sharded: bool) -> Result<f64> {
        for ranks in self.norm_groups(sharded) {
            ranks.host().all_reduce(squares.limbs_mut(), Sum)?;
        }
        Ok(squares.value().sqrt())
    }

    /// The groups over which squares are summed.
    fn norm_groups(&self, sharded: bool) -> impl Iterator<Item = &ProcessGroup> {
        let data = self.group.iter().filter(move |_| sharded).map(|group| &group.size);
        data.chain(&self.tensor)
    }
}

/// The sums of all buckets, over all groups of which each rank has a part; waits for them.
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
