//! Strategies: who keeps what of the parameters, and when ranks exchange it.
//!
//! | strategy | weights | gradients | optimiser state | bytes sent per step |
//! |---|---|---|---|---|
//! | [`Replicated`] | Ψ | Ψ | Ψ | 2Ψ |
//! | [`Replicated`] with owners | Ψ | Ψ | whole parameters of one owner each | 3Ψ |
//! | [`Sharded`], ZeRO-1 | Ψ | Ψ | Ψ/N | 2Ψ |
//! | [`Sharded`], ZeRO-2 | Ψ | Ψ/N | Ψ/N | 2Ψ |
//! | [`FullySharded`], ZeRO-3 | Ψ/N | Ψ/N | Ψ/N | 3Ψ |
//!
//! each times (N−1)/N. All of them add the gradients of an element in the same order, if the communicator was made
//! with [`Order::Ranks`](unisono::Order), and so take the same steps to the last bit.
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020; Rajbhandari et al., "ZeRO", SC 2020; Zhao et al.,
//! "PyTorch FSDP", VLDB 16(12), 2023.

mod base;
mod exact;
mod flight;
mod full;
mod gradients;
mod group;
mod matrix;
mod mean;
mod norm;
mod offload;
mod partial;
mod replicated;
mod settings;
mod sharded;
mod shares;
mod steps;
mod team;
mod transit;

pub use exact::ExactSum;
pub use full::FullySharded;
pub use mean::{Average, Mean};
pub use replicated::Replicated;
pub(crate) use replicated::owners;
pub use settings::{Form, Kind, ReduceEach, Settings, Unused};
pub use sharded::Sharded;
pub use team::Team;

use crate::error::Result;
use crate::memory::Memory;
use crate::optim::{Optimiser, Step};
use crate::parameter::{Inventory, Parameter, ParameterId};
use crate::strategy::Strategy;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What the training loop asks of a strategy, besides what modules do.
pub trait Parallel: Strategy {
    /// Before the forward of a pass; only the `last` of a step ends in communication.
    ///
    /// # Errors
    /// Of collectives that were under way.
    fn begin(&mut self, last: bool) -> Result<()>;

    /// After the backward of the last micro-batch: when this returns, gradients are the mean over all ranks.
    ///
    /// # Errors
    /// Of the collectives.
    fn finish(&mut self) -> Result<()>;

    /// Norm of the whole model's gradient: the same bits on all ranks and with every strategy.
    ///
    /// # Errors
    /// Of the collectives.
    fn norm(&mut self) -> Result<f64>;

    /// Takes a step with the gradients that there are, and clears them.
    ///
    /// # Errors
    /// Of the collectives.
    fn update(&mut self, optimiser: &dyn Optimiser, step: &Step) -> Result<()>;

    /// Waits for what is still under way, so that all that is kept is in place.
    ///
    /// # Errors
    /// Of the collectives.
    fn settle(&mut self) -> Result<()>;

    /// Shows what this rank keeps of every parameter: for checkpoints, and to put them back. Weights that `visit` changed
    /// reach the other ranks that use them with [`Parallel::share_out`].
    ///
    /// # Errors
    /// Of `visit`, and of collectives that were under way.
    fn visit(&mut self, visit: &mut dyn FnMut(Kept<'_>) -> Result<()>) -> Result<()>;

    /// Lets every rank have the weights as those who keep them have them.
    ///
    /// # Errors
    /// Of the collectives.
    fn share_out(&mut self) -> Result<()>;

    /// Whether every rank keeps the same, all of it.
    fn is_replicated(&self) -> bool;

    /// Makes room for so many moments of every element kept of a parameter, for when they come from a checkpoint.
    ///
    /// # Errors
    /// Of the file, where they are kept in one.
    fn make_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()>;

    /// How long this rank has waited for communication since it was last asked.
    fn waited(&mut self) -> Duration;
}

/// The strategy of this kind.
///
/// # Errors
/// Of the collectives by which ranks begin alike, and of the file where state is offloaded.
pub fn make(
    kind: Kind,
    inventory: &Arc<Inventory>,
    team: Team,
    settings: &Settings,
    memory: &Memory,
) -> Result<Box<dyn Parallel>> {
    Ok(match kind {
        Kind::Replicated => Box::new(Replicated::new(inventory, team, settings, memory)?),
        Kind::Owners => Box::new(Replicated::with_owners(inventory, team, settings, memory)?),
        Kind::Zero1 => Box::new(Sharded::one(inventory, team, settings, memory)?),
        Kind::Zero2 => Box::new(Sharded::two(inventory, team, settings, memory)?),
        Kind::Zero3 => Box::new(FullySharded::new(inventory, team, settings, memory)?),
    })
}

/// What a rank keeps of some elements of one parameter.
pub struct Kept<'a> {
    /// Which parameter.
    pub parameter: ParameterId,
    /// Which of its elements.
    pub range: Range<usize>,
    /// Their weights, in full precision.
    pub weights: &'a mut [f32],
    /// The optimiser's moments; none before the first step, and of frozen parameters.
    pub moments: &'a mut [&'a mut [f32]],
}

#[cfg(test)]
pub(crate) mod tests;
