//! State shared by all strategies.

use crate::bucket::{BucketId, BucketTracker, Layout, ParamStore};
use crate::data_parallel::data_group::{DataGroup, DataGroups};
use crate::data_parallel::partial_grads::PartialGrads;
use crate::data_parallel::{
    GradAverager, ParallelKind, ProcessGroups, ReduceFrequency, Settings, ShardGroups, SquareSum,
    UnusedGradients,
};
use std::sync::Arc;
use std::time::Duration;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Dtype, Inventory, ParameterId, UnitId};
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::step_plan::StepPlan;

pub(super) struct StrategyCore {
    /// Kind of the strategy on these ranks.
    pub(super) kind: ParallelKind,
    /// Data ranks that divide state, or all of them if each keeps everything; `None` if this rank
    /// is alone.
    pub(super) group: Option<DataGroup>,
    /// Data ranks of other groups with the same shards; `None` if there is one group.
    pub(super) replicas: Option<ProcessGroup>,
    pub(super) settings: Settings,
    pub(super) store: ParamStore,
    pub(super) averager: GradAverager,
    pub(super) wait_time: Duration,
    /// Tensor parallel group; `None` if this rank is alone.
    pub(super) tensor: Option<ProcessGroup>,
    /// Stages of the pipeline; `None` if this rank is alone.
    pub(super) pipeline: Option<ProcessGroup>,
    /// Stages that share a tied parameter; `None` if this rank has none.
    tied: Option<ProcessGroup>,
    /// Tensor parallel ranks with the same heads of keys and values; `None` if no head is repeated.
    repeats: Option<ProcessGroup>,
    /// Ranks that share experts, for the parameters of experts; `None` for others.
    experts: Option<ProcessGroup>,
    bucket_tracker: BucketTracker,
}

impl StrategyCore {
    pub(super) fn new(
        kind: ParallelKind,
        inventory: &Arc<Inventory>,
        team: ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        let ProcessGroups { data, tensor, pipeline, tied, experts } = team;
        check_device_supported(settings, memory)?;
        let data_ranks = data.as_ref().map_or(1, Communicator::size);
        let shard_groups = ShardGroups::new(settings.shard_ranks, data_ranks);
        let kind = kind.within(shard_groups);
        let DataGroups { group, replicas } = DataGroups::new(kind, data, shard_groups, memory)?;
        let experts = experts.map(|experts| experts.sharing);
        let repeats = repeating_ranks(tensor.as_ref(), inventory)?;
        let [tensor, tied, experts, repeats] = [tensor, tied, experts, repeats]
            .map(|group| group.map(|group| ProcessGroup::new(group, memory.gpu())).transpose());
        let (tensor, tied, experts, repeats) = (tensor?, tied?, experts?, repeats?);
        // This group exchanges sums of squares only, which are in host memory by then.
        let pipeline = pipeline.map(ProcessGroup::from);
        let ranks = group.as_ref().map_or(1, DataGroup::ranks);
        let layout = Arc::new(settings.layout(kind, inventory, ranks));
        // Whole buckets cannot be reduced after each micro-batch: modules would add the next
        // gradients to a mean, which the next reduction would average again. Shards are summed
        // apart from their buckets.
        let each_visit = settings.reduce_each == ReduceFrequency::MicroBatch && kind.shards_gradients();
        Ok(Self {
            store: ParamStore::new(Arc::clone(inventory), Arc::clone(&layout), memory),
            averager: GradAverager::new(ranks, settings, memory)
                .with_replicas(replicas.clone())
                // An expert gets rows from all ranks that share experts, so its gradient is already
                // their sum. The mean is over their samples, too.
                .with_mean_over(data_ranks * experts.as_ref().map_or(1, ProcessGroup::size)),
            bucket_tracker: BucketTracker::new(Arc::clone(inventory), layout, each_visit),
            settings: settings.clone(),
            wait_time: Duration::ZERO,
            kind,
            group,
            replicas,
            tensor,
            pipeline,
            tied,
            repeats,
            experts,
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, DataGroup::rank)
    }

    /// Returns true if a data rank with a lower number keeps the same state.
    pub(super) fn is_copy(&self) -> bool {
        match self.kind {
            ParallelKind::Replicated => self.rank() > 0,
            _ => self.replicas.as_ref().is_some_and(|replicas| replicas.rank() > 0),
        }
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.store.layout)
    }

    /// Returns the first known error of GPU operations.
    pub(super) fn check(&self) -> Result<()> {
        let data = self.group.iter().map(|group| &group.process_group);
        data.chain(&self.replicas)
            .chain(&self.tensor)
            .chain(&self.pipeline)
            .chain(&self.tied)
            .chain(&self.repeats)
            .chain(&self.experts)
            .try_for_each(ProcessGroup::check)
    }

    /// Returns the buckets that have gradients.
    pub(super) fn trainable_buckets(&self) -> Vec<BucketId> {
        let layout = &self.store.layout;
        layout.ids().filter(|&bucket| layout[bucket].trainable).collect()
    }

    pub(super) fn begin_step(&mut self, plan: &StepPlan) {
        self.bucket_tracker.begin_step(plan);
    }

    pub(super) fn mark_ready(&mut self, id: ParameterId) -> Result<()> {
        if self.bucket_tracker.mark_ready(id)? {
            self.store.fold_wide_grad(id)?;
        }
        Ok(())
    }

    /// Ends a backward visit of a unit, whose missing gradients are zero.
    pub(super) fn end_visit(&mut self, unit: UnitId) -> Result<()> {
        let complete = self.bucket_tracker.end_visit(unit);
        complete.into_iter().try_for_each(|id| self.store.fold_wide_grad(id))
    }

    /// Returns the next bucket in order, if all its gradients are ready.
    pub(super) fn next_complete_bucket(&mut self) -> Option<BucketId> {
        self.bucket_tracker.next_complete()
    }

    /// Returns the next bucket in order that was not reduced before backward ended.
    pub(super) fn next_remaining_bucket(&mut self) -> Result<Option<BucketId>> {
        if self.settings.unused == UnusedGradients::Refuse && !self.bucket_tracker.missing().is_empty() {
            let names = self.bucket_tracker.missing().join(", ");
            let hint = "allow unused parameters, or freeze them";
            return Err(Error::invalid(format!("no gradient came for {names}; {hint}")));
        }
        Ok(self.bucket_tracker.next_remaining())
    }

    /// Returns the gradients of a bucket that must be summed over other ranks with the same data.
    pub(super) fn partial_grads(&self, bucket: BucketId) -> PartialGrads {
        let (bucket, inventory) = (&self.store.layout[bucket], &*self.store.inventory);
        let partial = PartialGrads::for_bucket(bucket, inventory, self.tensor.as_ref(), self.tied.as_ref());
        partial.with_repeats(bucket, inventory, self.repeats.as_ref())
    }

    /// Adds the sums of ranks with other experts.
    pub(super) fn sum_over_experts(&self, squares: &mut SquareSum) -> Result<()> {
        let mut experts = self.experts.iter();
        experts.try_for_each(|ranks| squares.all_reduce(&self.store.memory, ranks))
    }

    /// Returns the number of elements of a parameter, from the first on, that this rank counts in
    /// the norm. Elements that several tensor parallel ranks have, or two stages, count once.
    pub(super) fn counted_in_norm(&self, id: ParameterId) -> usize {
        let parameter = &self.store.inventory[id];
        let has_gradient = parameter.sign_rate.is_none();
        if !has_gradient || !parameter.residency.is_owner() {
            return 0;
        }
        parameter.counted_elements(self.tensor.as_ref().map_or(0, ProcessGroup::rank))
    }
}

/// Returns the ranks of `tensor` with the same heads of keys and values; `None` if no head is
/// repeated. All ranks of `tensor` must call this.
fn repeating_ranks(tensor: Option<&Communicator>, inventory: &Inventory) -> Result<Option<Communicator>> {
    let here = inventory.parameters.iter().filter(|parameter| parameter.residency.is_here());
    // A model has one number of heads of keys, so all parameters with repeats have as many.
    let repeats = here.filter_map(|parameter| parameter.shard.as_ref()).map(|cut| cut.repeats).max();
    let (Some(tensor), Some(repeats)) = (tensor, repeats.filter(|&repeats| repeats > 1)) else {
        return Ok(None);
    };
    Ok(tensor.split(Some((tensor.rank() / repeats) as u32), tensor.rank() as i32)?)
}

/// Rejects settings of the optimizer's state that only the host supports, with flat buffers in GPU
/// memory.
fn check_device_supported(settings: &Settings, memory: &Allocator) -> Result<()> {
    let what = match (settings.offload.is_some(), settings.moment_dtype) {
        _ if memory.lane().is_none() => return Ok(()),
        (false, Dtype::F32) => return Ok(()),
        (true, _) => "optimizer state on disk",
        (false, Dtype::Bf16) => "moments of 16 bits",
    };
    Err(Error::Unsupported(format!("{what}, with flat memory of a GPU: not part of this build")))
}
