//! Policies for weights: which of them a rank keeps between steps, and how it gets the others.

mod gathered;
mod replicated;
mod sharded;

use crate::bucket::{BucketId, FlatBuffer, ParamStore};
use crate::data_parallel::ParallelKind;
use crate::data_parallel::grad_reducer::GradStorage;
use crate::data_parallel::optimizer_shards::BufferFrom;
use crate::data_parallel::strategy_core::StrategyCore;
use gathered::Gathered;
use replicated::Replicated;
use sharded::Sharded;
use unisono_nn::error::Result;
use unisono_nn::parameter::UnitId;
use unisono_nn::step_plan::{Direction, StepPlan};

/// Weights of one rank. [`ShardedStrategy`](super::ShardedStrategy) calls it in the order of a
/// step.
pub(super) trait WeightPolicy: Send {
    /// Makes the initial weights of a bucket. Buckets come in the order of their numbers.
    fn initialize(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()>;

    /// Begins a step, or a forward on its own, that visits units as `plan` says.
    fn begin_step(&mut self, _plan: &StepPlan) {}

    /// Makes the weights of `unit` complete before the model uses them.
    fn pre_unit(&mut self, base: &mut StrategyCore, unit: UnitId, way: Direction) -> Result<()>;

    /// Ends the use of `unit` in this direction of the pass.
    fn post_unit(&mut self, _base: &mut StrategyCore, _unit: UnitId, _way: Direction) {}

    /// Waits for the exchanges under way, so that kept weights may change.
    fn wait_all(&mut self, base: &mut StrategyCore) -> Result<()> {
        base.check()
    }

    /// Returns the weights of a bucket that this rank keeps, after [`WeightPolicy::wait_all`].
    fn kept<'a>(&'a mut self, store: &'a mut ParamStore, bucket: BucketId) -> BufferFrom<&'a mut FlatBuffer>;

    /// Starts to send changed weights to the ranks that keep a copy of them. The weights of the
    /// first bucket are sent first.
    fn send_changed(&mut self, _base: &mut StrategyCore, _buckets: &[BucketId]) -> Result<()> {
        Ok(())
    }
}

/// Returns the policies of a strategy's kind for weights and for gradients.
pub(super) fn policies(base: &StrategyCore) -> (Box<dyn WeightPolicy>, GradStorage) {
    match base.kind {
        ParallelKind::Replicated => (Box::new(Replicated), GradStorage::Full),
        ParallelKind::Zero1 => (Box::new(Gathered::new(base)), GradStorage::ShardInPlace),
        ParallelKind::Zero2 => (Box::new(Gathered::new(base)), GradStorage::Shard),
        ParallelKind::Zero3 => (Box::new(Sharded::new(base)), GradStorage::Shard),
    }
}
