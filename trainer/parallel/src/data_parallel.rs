//! Data parallel strategies: the state each rank keeps, and the communication of each step.
//!
//! | strategy | weights | gradients | optimizer state | bytes sent per step |
//! |---|---|---|---|---|
//! | [`ParallelKind::Replicated`] | Ψ | Ψ | Ψ | 2Ψ |
//! | [`ParallelKind::Zero1`] | Ψ | Ψ | Ψ/N | 2Ψ |
//! | [`ParallelKind::Zero2`] | Ψ | Ψ/N | Ψ/N | 2Ψ |
//! | [`ParallelKind::Zero3`] | Ψ/N | Ψ/N | Ψ/N | 3Ψ |
//! | [`Mixed`] | by unit | by unit | by unit | by unit |
//!
//! Ψ is the size of the parameters and N the number of ranks; bytes are multiplied by (N−1)/N. All
//! strategies add the gradients of an element in the same order if the communicator reduces in rank
//! order ([`unisono::ReductionOrder`]). Their steps are then bitwise equal.
//!
//! With [`Settings::shard_ranks`], ranks divide state within [`ShardGroups`] of N ranks, and each
//! group has all of it. A step then also sends 2Ψ/N between groups, multiplied by (R−1)/R for R
//! groups. Sums are those of groups first, so the steps are equal among ZeRO stages with groups of
//! one size, and to other strategies up to rounding.
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020; Rajbhandari et al., "ZeRO", SC
//! 2020; Zhao et al., "PyTorch FSDP", VLDB 16(12), 2023.

mod averaging;
mod data_group;
mod exact_sum;
mod grad_norm;
mod grad_reducer;
mod group_bytes;
mod matrix_update;
mod mixed_strategies;
mod offload;
mod optimizer_shards;
mod optimizer_step;
mod partial_grads;
mod pending_collective;
mod process_groups;
mod settings;
mod shard_access;
mod sharded_strategy;
mod strategy_core;
mod weights;

pub use crate::data_parallel::averaging::{Average, GradAverager};
pub use crate::data_parallel::exact_sum::ExactSum;
pub use crate::data_parallel::grad_norm::SquareSum;
pub use crate::data_parallel::group_bytes::{GroupBytes, remote_fraction};
pub use crate::data_parallel::mixed_strategies::Mixed;
pub use crate::data_parallel::process_groups::{ExpertGroups, ProcessGroups};
pub use settings::shard_ranks_of_experts;
pub use settings::{ParallelKind, ReduceFrequency, Settings, ShardGroups, UnusedGradients};
pub use sharded_strategy::ShardedStrategy;

use crate::optimizer::{Optimizer, Step};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Inventory, Parameter, ParameterId};
use unisono_nn::strategy::Strategy;

/// Operations that the training loop needs from a strategy, in addition to those for modules.
pub trait DataParallel: Strategy {
    /// Completes the backward of the last micro-batch. On return, gradients are the mean over all
    /// ranks.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn finish_backward(&mut self) -> Result<()>;

    /// Returns the norm of the whole model's gradient. The result is bitwise equal on all ranks and
    /// with every strategy, if gradients are in host memory.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn grad_norm(&mut self) -> Result<f64> {
        let squares = self.square_sum()?;
        self.finish_norm(squares)
    }

    /// Returns the sum of squares of the gradients that the data parallel group holds.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn square_sum(&mut self) -> Result<SquareSum>;

    /// Adds the sums of the ranks that hold other parts of the model, and returns the root.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn finish_norm(&self, squares: SquareSum) -> Result<f64>;

    /// Takes an optimizer step with the present gradients and clears them.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()>;

    /// Waits for all communication under way, so that all kept state is in place.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn wait_all(&mut self) -> Result<()>;

    /// Calls `visit` with each piece of state that this rank keeps, to save or restore a
    /// checkpoint. Call [`DataParallel::broadcast_params`] afterwards if `visit` changed weights
    /// that other ranks use.
    ///
    /// # Errors
    /// Returns the error of `visit`, or of a collective that was under way.
    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()>;

    /// Sends the weights from the ranks that own them to all other ranks.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn broadcast_params(&mut self) -> Result<()>;

    /// Returns true if a data rank with a lower number keeps the same state of a parameter. That
    /// rank saves it.
    fn is_copy(&self, id: ParameterId) -> bool;

    /// Allocates `count` moments for every kept element of a parameter, before a checkpoint is
    /// loaded.
    ///
    /// # Errors
    /// Fails if the offload file cannot be written.
    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()>;

    /// Returns the time this rank has waited for communication since the last call.
    fn take_wait_time(&mut self) -> Duration;
}

/// Creates the strategy of this kind.
///
/// # Errors
/// Fails if the initial broadcast fails, or the offload file cannot be created.
pub fn new_strategy(
    kind: ParallelKind,
    inventory: &Arc<Inventory>,
    team: ProcessGroups,
    settings: &Settings,
    memory: &Allocator,
) -> Result<Box<dyn DataParallel>> {
    Ok(Box::new(ShardedStrategy::new(kind, inventory, team, settings, memory)?))
}

/// State that a rank keeps of some elements of one parameter.
pub struct LocalShard<'a> {
    /// The parameter.
    pub parameter: ParameterId,
    /// The range of its elements.
    pub range: Range<usize>,
    /// Weights of these elements, in full precision.
    pub weights: &'a mut [f32],
    /// Moments of the optimizer. Empty before the first step, and for frozen parameters.
    pub moments: &'a mut [&'a mut [f32]],
}

#[cfg(test)]
pub(crate) mod tests;
