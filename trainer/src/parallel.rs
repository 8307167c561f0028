//! Strategies: who keeps what of the parameters, and when ranks exchange it.
//!
//! | strategy | weights | gradients | optimizer state | bytes sent per step |
//! |---|---|---|---|---|
//! | [`Replicated`] | Ψ | Ψ | Ψ | 2Ψ |
//! | [`Replicated`] with owners | Ψ | Ψ | whole parameters of one owner each | 3Ψ |
//! | [`Sharded`], ZeRO-1 | Ψ | Ψ | Ψ/N | 2Ψ |
//! | [`Sharded`], ZeRO-2 | Ψ | Ψ/N | Ψ/N | 2Ψ |
//! | [`FullySharded`], ZeRO-3 | Ψ/N | Ψ/N | Ψ/N | 3Ψ |
//!
//! each times (N−1)/N. All of them add the gradients of an element in the same order, if the communicator was made
//! with [`ReductionOrder::RankOrder`](unisono::Order), and so take the same steps to the last bit.
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020; Rajbhandari et al., "ZeRO", SC 2020; Zhao et al.,
//! "PyTorch FSDP", VLDB 16(12), 2023.

mod averaging;
mod data_group;
mod exact_sum;
mod fully_sharded;
mod grad_norm;
mod grad_reducer;
mod matrix_update;
mod offload;
mod optimizer_shards;
mod optimizer_step;
mod param_broadcast;
mod partial_grads;
mod pending_collective;
mod process_groups;
mod replicated;
mod settings;
mod sharded;
mod strategy_core;

pub use crate::parallel::averaging::{Average, GradAverager};
pub use crate::parallel::exact_sum::ExactSum;
pub use crate::parallel::fully_sharded::FullySharded;
pub use crate::parallel::process_groups::ProcessGroups;
pub use replicated::Replicated;
pub(crate) use replicated::assign_owners;
pub use settings::{GradReduction, ParallelKind, ReduceFrequency, Settings, UnusedGradients};
pub use sharded::Sharded;

use crate::allocator::Allocator;
use crate::error::Result;
use crate::optim::{Optimizer, Step};
use crate::parameter::{Inventory, Parameter, ParameterId};
use crate::strategy::Strategy;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What the training loop asks of a strategy, besides what modules do.
pub trait DataParallel: Strategy {
    /// Before the forward of a pass; only the `last` of a step ends in communication.
    ///
    /// # Errors
    /// Of collectives that were under way.
    fn begin_pass(&mut self, last: bool) -> Result<()>;

    /// After the backward of the last micro-batch: when this returns, gradients are the mean over all ranks.
    ///
    /// # Errors
    /// Of the collectives.
    fn finish_backward(&mut self) -> Result<()>;

    /// Norm of the whole model's gradient: the same bits on all ranks and with every strategy.
    ///
    /// # Errors
    /// Of the collectives.
    fn grad_norm(&mut self) -> Result<f64>;

    /// Takes a step with the gradients that there are, and clears them.
    ///
    /// # Errors
    /// Of the collectives.
    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()>;

    /// Waits for what is still under way, so that all that is kept is in place.
    ///
    /// # Errors
    /// Of the collectives.
    fn wait_all(&mut self) -> Result<()>;

    /// Shows what this rank keeps of every parameter: for checkpoints, and to put them back. Weights that `visit` changed
    /// reach the other ranks that use them with [`DataParallel::share_out`].
    ///
    /// # Errors
    /// Of `visit`, and of collectives that were under way.
    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()>;

    /// Lets every rank have the weights as those who keep them have them.
    ///
    /// # Errors
    /// Of the collectives.
    fn broadcast_params(&mut self) -> Result<()>;

    /// Whether every rank keeps the same, all of it.
    fn is_replicated(&self) -> bool;

    /// Makes room for so many moments of every element kept of a parameter, for when they come from a checkpoint.
    ///
    /// # Errors
    /// Of the file, where they are kept in one.
    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()>;

    /// How long this rank has waited for communication since it was last asked.
    fn take_wait_time(&mut self) -> Duration;
}

/// The strategy of this kind.
///
/// # Errors
/// Of the collectives by which ranks begin alike, and of the file where state is offloaded.
pub fn new_strategy(
    kind: ParallelKind,
    inventory: &Arc<Inventory>,
    team: ProcessGroups,
    settings: &Settings,
    memory: &Allocator,
) -> Result<Box<dyn DataParallel>> {
    Ok(match kind {
        ParallelKind::Replicated => Box::new(Replicated::new(inventory, team, settings, memory)?),
        ParallelKind::Zero1Parameters => {
            Box::new(Replicated::with_owners(inventory, team, settings, memory)?)
        }
        ParallelKind::Zero1 => Box::new(Sharded::zero1(inventory, team, settings, memory)?),
        ParallelKind::Zero2 => Box::new(Sharded::zero2(inventory, team, settings, memory)?),
        ParallelKind::Zero3 => Box::new(FullySharded::new(inventory, team, settings, memory)?),
    })
}

/// What a rank keeps of some elements of one parameter.
pub struct LocalShard<'a> {
    /// Which parameter.
    pub parameter: ParameterId,
    /// Which of its elements.
    pub range: Range<usize>,
    /// Their weights, in full precision.
    pub weights: &'a mut [f32],
    /// The optimizer's moments; none before the first step, and of frozen parameters.
    pub moments: &'a mut [&'a mut [f32]],
}

#[cfg(test)]
pub(crate) mod tests;
