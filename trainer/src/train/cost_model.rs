//! Predicts the memory and traffic of a rank by formula.
//!
//! Sources: Rajbhandari et al., "ZeRO", SC 2020, for memory and traffic of data parallelism;
//! Shoeybi et al., "Megatron-LM", arXiv 1909.08053, for traffic of tensor parallelism; Korthikanti
//! et al., "Reducing activation recomputation in large transformer models", MLSys 2023, for
//! activations.

mod activations;

use crate::config::{Config, StrategyKind};
use crate::flat::{Bucket, Dtype, Layout};
use crate::mesh::Mesh;
use crate::optim::Optimizer;
use crate::parallel::{ParallelKind, ReduceFrequency, Settings, assign_owners};
use crate::parameter::{Inventory, Parameter};
use crate::strategy::Direction;
pub(crate) use crate::train::cost_model::activations::{ActivationModel, HeldLayers};
use crate::train::setup::optimizer;
use crate::train::stages::Stages;
use crate::train::{BatchPlan, DataDims};

/// Inputs of the formulas: one rank's part of a run.
#[derive(Clone, Copy)]
pub(super) struct CostModel<'a> {
    pub(super) config: &'a Config,
    pub(super) dims: DataDims,
    pub(super) inventory: &'a Inventory,
    pub(super) mesh: Mesh,
    pub(super) batch: BatchPlan,
    pub(super) stages: &'a Stages,
    /// Pipeline coordinate of the rank.
    pub(super) stage: usize,
}

/// Bytes that a rank sends in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Sent in forward passes: gathered weights.
    pub forward: f64,
    /// Sent in backward passes: gathered weights and reduced gradients.
    pub backward: f64,
    /// Sent in the optimizer step: update directions of whole matrices, and new weights.
    pub after_step: f64,
    /// Sent by tensor parallel layers: activations, their gradients, and partial gradients.
    pub tensor_parallel: f64,
    /// Sent for sharded sequences: keys, values and their gradients.
    pub sequence_parallel: f64,
    /// Sent to other pipeline stages: features, their gradients, and that of a tied parameter.
    pub pipeline: f64,
}

impl Traffic {
    /// Returns the total.
    pub fn total(&self) -> f64 {
        let within = self.tensor_parallel + self.sequence_parallel + self.pipeline;
        self.forward + self.backward + self.after_step + within
    }
}

impl CostModel<'_> {
    /// Returns the bytes of weights, gradients and optimizer state that each rank keeps between
    /// backward and step, the peak of activations, and the offloaded bytes. Includes padding. If
    /// ranks differ, the largest rank counts. `units` has the strategy of each unit.
    pub(super) fn memory(&self, units: &[StrategyKind], optimizer: &dyn Optimizer) -> [usize; 5] {
        let mut sums = [0, 0, 0, self.activations(), 0];
        for (kind, inventory) in self.parts(units) {
            let kept = CostModel { inventory: &inventory, ..*self }.kept(kind, optimizer);
            sums.iter_mut().zip(kept).for_each(|(sum, bytes)| *sum += bytes);
        }
        sums
    }

    /// Returns the bytes that each rank sends in a step: (N−1)/N of multiples of the sizes. `units`
    /// has the strategy of each unit.
    pub(super) fn traffic(&self, units: &[StrategyKind]) -> Traffic {
        let micro_batches = self.batch.accumulation as f64;
        let [layers, sequences] = [self.tensor_parallel_traffic(), self.sequence_parallel_traffic()];
        let mut sum = Traffic {
            tensor_parallel: micro_batches * layers,
            sequence_parallel: micro_batches * sequences,
            pipeline: self.pipeline_traffic(),
            ..Traffic::default()
        };
        for (kind, inventory) in self.parts(units) {
            let part = CostModel { inventory: &inventory, ..*self }.exchanged(kind);
            sum.forward += part.forward;
            sum.backward += part.backward;
            sum.after_step += part.after_step;
            sum.tensor_parallel += part.tensor_parallel;
        }
        sum
    }

    /// Returns the parameters of the units with equal strategies.
    fn parts(&self, units: &[StrategyKind]) -> impl Iterator<Item = (StrategyKind, Inventory)> {
        let kinds = StrategyKind::ALL.into_iter().filter(|kind| units.contains(kind));
        kinds.map(|kind| (kind, self.inventory.restrict(|unit| units[unit.0] == kind)))
    }

    /// Returns the bytes that each rank keeps with one strategy, as [`CostModel::memory`] does, but
    /// no activations.
    fn kept(&self, kind: StrategyKind, optimizer: &dyn Optimizer) -> [usize; 5] {
        let (settings, ranks) = (self.settings(kind), self.mesh.data_size());
        let layout = settings.layout(kind.parallel_kind(), self.inventory, ranks);
        let sum = |bytes: &dyn Fn(&Bucket) -> usize| layout.buckets.iter().map(bytes).sum::<usize>();
        let weights = sum(&|bucket| bucket.count * bucket.dtype.size());
        let gradients = sum(&|bucket| trained_elements(bucket) * bucket.grad_dtype.size());
        let state = sum(&|bucket| self.state_bytes(bucket, optimizer));
        let [of_weights, of_gradients, of_state] = shard_counts(kind, ranks);
        let state = match kind.parallel_kind() {
            ParallelKind::Zero1Parameters => self.busiest_owner_state(&layout, optimizer),
            _ => state / of_state,
        };
        let (state, offloaded) = if settings.offload.is_some() { (0, state) } else { (state, 0) };
        [weights / of_weights, gradients / of_gradients, state, 0, offloaded]
    }

    /// Returns the bytes that each rank sends for weights, gradients and steps with one strategy.
    fn exchanged(&self, kind: StrategyKind) -> Traffic {
        let (settings, passes) = (self.settings(kind), self.batch.pass_count() as f64);
        let layout = settings.layout(kind.parallel_kind(), self.inventory, self.mesh.data_size());
        let share = remote_fraction(self.mesh.data_size());
        let sum =
            |bytes: &dyn Fn(&Bucket) -> usize| share * layout.buckets.iter().map(bytes).sum::<usize>() as f64;
        let stepped = sum(&|bucket| trained_elements(bucket) * bucket.dtype.size());
        let wire = |bucket: &Bucket| settings.wire_dtype.unwrap_or(bucket.grad_dtype);
        let gradients = sum(&|bucket| trained_elements(bucket) * wire(bucket).size());
        let each = settings.reduce_each == ReduceFrequency::MicroBatch && kind.shards_gradients();
        let gradients = if each { passes * gradients } else { gradients };
        let [ahead, again] = self.gathered_bytes(&layout).map(|bytes| share * bytes as f64);
        let again = if settings.reshard_after_forward { again } else { 0.0 };
        let [forward, backward, after] = exchanged_bytes(kind, [ahead, again], gradients, stepped);
        let after = after + self.optimizer_traffic(kind, &layout);
        let layers = if each { passes } else { 1.0 } * self.partial_grad_traffic();
        Traffic { forward, backward, after_step: after, tensor_parallel: layers, ..Traffic::default() }
    }

    /// Returns the bytes sent by the optimizer step: update directions of whole matrices, gathered
    /// from shards and parts.
    fn optimizer_traffic(&self, kind: StrategyKind, layout: &Layout) -> f64 {
        let optimizer = optimizer(self.config);
        let shares = remote_fraction(if kind.shards_state() { self.mesh.data_size() } else { 1 });
        let parts = (self.mesh.degrees().tensor - 1) as f64;
        let of = |bucket: &Bucket| {
            let parameter = &self.inventory[bucket.entries.first()?.parameter];
            optimizer.as_matrix_optimizer(parameter)?;
            let part = if parameter.shard.is_some() { parts * parameter.count() as f64 } else { 0.0 };
            Some(shares * bucket.count as f64 + part)
        };
        layout.buckets.iter().filter(|bucket| bucket.trainable).filter_map(of).sum::<f64>()
            * Dtype::F32.size() as f64
    }

    /// Returns the bytes per step of sums of partial gradients over tensor parallel ranks.
    fn partial_grad_traffic(&self) -> f64 {
        let partial = self
            .inventory
            .parameters
            .iter()
            .filter(|parameter| parameter.partial_grad && parameter.trainable)
            .filter(|parameter| parameter.residency.is_here());
        let bytes = partial.map(|parameter| parameter.count() * Dtype::F32.size()).sum::<usize>();
        2.0 * remote_fraction(self.mesh.degrees().tensor) * bytes as f64
    }

    /// Returns the bytes of weights gathered in forward and in backward of a step: those that each
    /// unit uses.
    fn gathered_bytes(&self, layout: &Layout) -> [usize; 2] {
        let plan = self.stages.program(self.stage, &self.batch, self.inventory).plan;
        let size = |bucket| layout[bucket].count * layout[bucket].dtype.size();
        let bytes = |unit| layout.buckets_of(self.inventory, unit).into_iter().map(size).sum::<usize>();
        [Direction::Forward, Direction::Backward].map(|wanted| {
            let gathers = plan.gathers().filter(|&(_, way)| way == wanted);
            gathers.map(|(unit, _)| bytes(unit)).sum()
        })
    }

    /// Returns the bytes per micro-batch of sharded sequences. Each block gathers keys and values
    /// of all tokens in both directions, and sums their gradients.
    fn sequence_parallel_traffic(&self) -> f64 {
        let (model, degrees) = (&self.config.model, self.mesh.degrees());
        let heads = if model.kv_heads == 0 { model.heads } else { model.kv_heads };
        let width = heads.div_ceil(degrees.tensor) * (model.width / model.heads);
        let numbers = self.batch.micro_batch * model.context * 2 * width * Dtype::F32.size();
        let times = if model.activation_checkpointing { 4 } else { 3 };
        remote_fraction(degrees.sequence_data) * (times * self.layers() * numbers) as f64
    }

    /// Returns the bytes per micro-batch of tensor parallel layers. Each block reduces over rows
    /// and features before and after both of its parts, in both directions. Recomputation repeats
    /// the sums after them. The embedding, the head and the loss (three numbers per row) add
    /// theirs.
    fn tensor_parallel_traffic(&self) -> f64 {
        let (model, chunks) = (&self.config.model, self.mesh.degrees().sequence_data);
        let rows = self.batch.micro_batch * model.context / chunks;
        let sums = (if model.activation_checkpointing { 6 } else { 4 }) * self.layers();
        let sums = sums + usize::from(self.has_embedding()) + usize::from(self.has_head());
        let losses = if self.has_head() { 3 } else { 0 };
        2.0 * remote_fraction(self.mesh.degrees().tensor)
            * (rows * (sums * model.width + losses) * Dtype::F32.size()) as f64
    }

    /// Returns the bytes per step of values for other pipeline stages. A tied parameter's gradient
    /// is summed over two stages.
    fn pipeline_traffic(&self) -> f64 {
        let (model, degrees) = (&self.config.model, self.mesh.degrees());
        let split = if self.config.strategy.sequence_parallel { degrees.tensor } else { 1 };
        let rows = self.batch.micro_batch * model.context / degrees.sequence_data / split;
        let sends = self.stages.program(self.stage, &self.batch, self.inventory).send_count();
        let tied = self.inventory.parameters.iter().filter(|parameter| parameter.residency.is_tied());
        let tied: usize = tied.map(Parameter::count).sum();
        ((sends * rows * model.width + tied) * Dtype::F32.size()) as f64
    }

    /// Returns the number of layers on this rank.
    fn layers(&self) -> usize {
        let ends = usize::from(self.has_embedding()) + usize::from(self.has_head());
        self.inventory.own_units().count().saturating_sub(ends)
    }

    fn has_embedding(&self) -> bool {
        self.inventory.units.first().is_some_and(|unit| unit.is_own)
    }

    fn has_head(&self) -> bool {
        self.inventory.units.last().is_some_and(|unit| unit.is_own)
    }

    fn settings(&self, kind: StrategyKind) -> Settings {
        let mut config = self.config.clone();
        config.strategy.kind = kind;
        config.settings()
    }

    /// Returns the bytes of moments, and of full-precision copies of 16-bit weights.
    fn state_bytes(&self, bucket: &Bucket, optimizer: &dyn Optimizer) -> usize {
        let moments =
            bucket.entries.iter().map(|piece| optimizer.moment_count(&self.inventory[piece.parameter]));
        let moments = moments.max().unwrap_or(0) * self.config.optimizer.moment_dtype.size();
        let copy = if bucket.dtype == Dtype::Bf16 { Dtype::F32.size() } else { 0 };
        trained_elements(bucket) * (moments + copy)
    }

    fn busiest_owner_state(&self, layout: &Layout, optimizer: &dyn Optimizer) -> usize {
        let ranks = self.mesh.data_size();
        let mut loads = vec![0; ranks];
        for (bucket, owner) in layout.buckets.iter().zip(assign_owners(layout, ranks)) {
            loads[owner] += self.state_bytes(bucket, optimizer);
        }
        loads.into_iter().max().unwrap_or(0)
    }

    fn activations(&self) -> usize {
        let Config { model, strategy, .. } = self.config;
        let (micro, breadth) = (self.batch.micro_batch, self.batch.breadth_first);
        let numbers = match self.dims {
            DataDims::Tokens(vocabulary) => {
                let degrees = self.mesh.degrees();
                let rows = if strategy.sequence_parallel { degrees.tensor } else { 1 };
                let (parts, chunks) = (degrees.tensor, degrees.sequence_data);
                let gpt = &model.gpt_config(vocabulary);
                let whole = ActivationModel {
                    gpt,
                    shards: parts,
                    rows,
                    chunks,
                    micro_batch: micro,
                    breadth_first: breadth,
                };
                match self.stages.held(self.stage) {
                    Some(held) => whole.stage_peak(held, self.has_head()),
                    None => whole.peak(),
                }
            }
            DataDims::Rows(features, classes) => {
                micro * breadth * (features + 2 * model.hidden_sizes.iter().sum::<usize>() + classes)
            }
        };
        numbers * Dtype::F32.size()
    }
}

/// Number of the classes of predicted bytes that are in memory; the last one is offloaded.
pub(super) const IN_MEMORY: usize = 4;

/// Returns the sum of the predicted bytes that are in memory.
pub(super) fn in_memory(memory: [usize; 5]) -> usize {
    memory[..IN_MEMORY].iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

/// Returns the numbers of shards of weights, gradients and optimizer state, for this number of data
/// ranks.
pub(crate) fn shard_counts(kind: StrategyKind, ranks: usize) -> [usize; 3] {
    match kind.parallel_kind() {
        ParallelKind::Replicated => [1, 1, 1],
        ParallelKind::Zero1Parameters | ParallelKind::Zero1 => [1, 1, ranks],
        ParallelKind::Zero2 => [1, ranks, ranks],
        ParallelKind::Zero3 => [ranks, ranks, ranks],
    }
}

/// Returns the bytes sent in forward, backward and step, from the sizes of gathered weights,
/// gradients and new weights. An all-reduce counts as a reduce-scatter and an all-gather.
pub(crate) fn exchanged_bytes(
    kind: StrategyKind,
    [ahead, again]: [f64; 2],
    gradients: f64,
    stepped: f64,
) -> [f64; 3] {
    match kind.parallel_kind() {
        ParallelKind::Replicated => [0.0, 2.0 * gradients, 0.0],
        ParallelKind::Zero1Parameters => [0.0, 2.0 * gradients, stepped],
        ParallelKind::Zero1 | ParallelKind::Zero2 => [0.0, gradients, stepped],
        ParallelKind::Zero3 => [ahead, again + gradients, 0.0],
    }
}

fn trained_elements(bucket: &Bucket) -> usize {
    if bucket.trainable { bucket.count } else { 0 }
}

/// Returns the fraction (N−1)/N that each rank sends of a buffer that is reduced or gathered once.
pub(crate) fn remote_fraction(ranks: usize) -> f64 {
    (ranks - 1) as f64 / ranks as f64
}
