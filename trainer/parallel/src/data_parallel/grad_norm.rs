//! Norm of a gradient in host or GPU memory.
//!
//! The caller clips by this norm: [`grad_scale`](crate::optimizer::grad_scale) returns the factor
//! that the caller passes to the optimizer.

use crate::data_parallel::ExactSum;
use crate::data_parallel::strategy_core::StrategyCore;
use unisono::Sum;
use unisono::device::Buffer;
use unisono_cuda::device::compute::Compute;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::process_group::ProcessGroup;

/// Sum of squares of a gradient, computed in the memory that holds it.
pub enum SquareSum {
    /// Sum on the host without rounding; the bits do not depend on the order.
    Exact(ExactSum),
    /// 64-bit sums on a GPU, one per bucket. The last bits depend on the sharding of the gradient.
    Rounded(Vec<Buffer<f64>>),
}

impl SquareSum {
    /// Creates an empty sum in the memory that `memory` uses for flat buffers.
    pub(super) fn new(memory: &Allocator) -> Self {
        match memory.lane() {
            Some(_) => Self::Rounded(Vec::new()),
            None => Self::Exact(ExactSum::default()),
        }
    }

    /// Adds the sum of other parameters of this rank.
    pub(super) fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Exact(sum), Self::Exact(other)) => sum.add_sum(&other),
            (Self::Rounded(sums), Self::Rounded(others)) => sums.extend(others),
            _ => unreachable!("gradients of one rank lie at one place"),
        }
    }

    /// Adds the sums of all ranks of a group.
    pub(super) fn all_reduce(&mut self, memory: &Allocator, ranks: &ProcessGroup) -> Result<()> {
        match self {
            Self::Exact(squares) => ranks.host().all_reduce(squares.limbs_mut(), Sum)?,
            // Ranks of a group have equal layouts, so that all of them skip the collective or none
            // does.
            Self::Rounded(sums) if sums.is_empty() => {}
            Self::Rounded(sums) => {
                let lane = lane(memory);
                let mut joined_sums = joined(lane, sums)?;
                ranks.device()?.all_reduce(lane.stream(), &mut joined_sums, Sum)?;
                *sums = vec![joined_sums];
            }
        }
        Ok(())
    }

    /// Returns the sum over all stages of a pipeline. Waits for the sums of a GPU.
    fn over_stages(self, memory: &Allocator, stages: Option<&ProcessGroup>) -> Result<f64> {
        Ok(match self {
            Self::Exact(mut squares) => {
                stages.map_or(Ok(()), |stages| stages.host().all_reduce(squares.limbs_mut(), Sum))?;
                squares.value()
            }
            Self::Rounded(sums) => {
                // Stages have different numbers of buckets, and some have none.
                let local = if sums.is_empty() { 0.0 } else { total(lane(memory), &sums)? };
                let mut sum = [local];
                stages.map_or(Ok(()), |stages| stages.host().all_reduce(&mut sum, Sum))?;
                sum[0]
            }
        })
    }
}

fn lane(memory: &Allocator) -> &Compute {
    memory.lane().expect("on a GPU")
}

/// Copies all sums to one buffer.
fn joined(lane: &Compute, sums: &[Buffer<f64>]) -> Result<Buffer<f64>> {
    let mut buffer = lane.stream().alloc_uninit(sums.iter().map(Buffer::len).sum())?;
    let mut start = 0;
    for sum in sums {
        lane.copy(buffer.view_mut(start..start + sum.len()), sum.view(..))?;
        start += sum.len();
    }
    Ok(buffer)
}

fn total(lane: &Compute, sums: &[Buffer<f64>]) -> Result<f64> {
    Ok(joined(lane, sums)?.to_vec(lane.stream())?.into_iter().sum())
}

impl StrategyCore {
    /// Adds the sums of the shards of other data ranks. Ranks with the same shards in other groups
    /// are not among them, so that each shard counts once.
    pub(super) fn sum_over_shards(&self, squares: &mut SquareSum) -> Result<()> {
        let mut data = self.group.iter();
        data.try_for_each(|group| squares.all_reduce(&self.store.memory, &group.process_group))
    }

    /// Adds the sums of the ranks that hold other parts of the model, and returns the root.
    pub(super) fn finish_norm(&self, mut squares: SquareSum) -> Result<f64> {
        let memory = &self.store.memory;
        self.tensor.iter().try_for_each(|ranks| squares.all_reduce(memory, ranks))?;
        let norm = squares.over_stages(memory, self.pipeline.as_ref())?.sqrt();
        // The norm scales the step, so an error of the GPU work behind it must end the step first.
        self.check()?;
        Ok(norm)
    }
}
