//! Memory and traffic of each strategy.

use crate::config::StrategyKind;
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims};
use crate::train::{exchanged_bytes, remote_fraction, shard_counts};
use serde::Serialize;

/// Strategies that a plan compares.
pub(crate) const KINDS: [StrategyKind; 4] =
    [StrategyKind::Bucketed, StrategyKind::Zero1, StrategyKind::Zero2, StrategyKind::Zero3];

/// Parallelism of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParallelConfig {
    /// Data parallel strategy.
    pub kind: StrategyKind,
    /// Tensor parallel degree.
    pub tensor: usize,
    /// Pipeline parallel degree.
    pub pipeline: usize,
    /// Context parallel degree, within the data ranks.
    pub context: usize,
    /// Expert parallel degree, within the data ranks.
    pub expert: usize,
    /// Number of ranks with the same part of the model.
    pub data: usize,
    /// Recomputes activations in backward, also if the model does not say so.
    pub activation_checkpointing: bool,
}

impl ParallelConfig {
    /// Returns pure data parallelism with replicated state.
    pub fn replicated(ranks: usize) -> Self {
        Self {
            kind: StrategyKind::Bucketed,
            tensor: 1,
            pipeline: 1,
            context: 1,
            expert: 1,
            data: ranks,
            activation_checkpointing: false,
        }
    }

    /// Returns the number of parameters per data parallel group.
    pub fn parameters(&self, sizes: &ModelDims) -> f64 {
        sizes.parameters / (self.tensor * self.pipeline) as f64
    }

    /// Returns the bytes of weights, gradients and optimizer state that each rank keeps.
    pub fn kept_bytes(&self, bytes: &BytesPerParam, parameters: f64) -> [f64; 3] {
        let whole = [bytes.weight, bytes.gradient, bytes.state].map(|bytes| bytes * parameters);
        let divisors = shard_counts(self.kind, self.data);
        [0, 1, 2].map(|class| whole[class] / divisors[class] as f64)
    }

    /// Returns the bytes each rank needs with this micro-batch: state, activations, and three whole
    /// layers if weights are sharded.
    pub fn needed_bytes(&self, sizes: &ModelDims, bytes: &BytesPerParam, micro: usize) -> f64 {
        let kept: f64 = self.kept_bytes(bytes, self.parameters(sizes)).iter().sum();
        let gathers = self.kind == StrategyKind::Zero3;
        let whole = if gathers { 3.0 * self.largest_layer_bytes(sizes, bytes) } else { 0.0 };
        kept + whole + micro as f64 * self.activations(sizes)
    }

    /// Returns the bytes of activations per sample. Pipeline stages do not reduce them, because the
    /// first stage holds as many micro-batches as there are stages.
    pub fn activations(&self, sizes: &ModelDims) -> f64 {
        sizes.activations(self.tensor, self.recomputes(sizes)) / self.context as f64
    }

    /// Returns true if activations are recomputed in backward.
    pub fn recomputes(&self, sizes: &ModelDims) -> bool {
        self.activation_checkpointing || sizes.activation_checkpointing
    }

    /// Returns the bytes of the gathered weights of the largest layer.
    pub fn largest_layer_bytes(&self, sizes: &ModelDims, bytes: &BytesPerParam) -> f64 {
        bytes.weight * sizes.largest_layer() / (self.tensor * self.expert.min(sizes.experts)) as f64
    }

    /// Returns the largest micro-batch that fits in memory.
    pub fn max_micro_batch(&self, sizes: &ModelDims, bytes: &BytesPerParam, hardware: &Hardware) -> usize {
        let left = hardware.usable_memory() - self.needed_bytes(sizes, bytes, 0);
        (left / self.activations(sizes)).max(0.0) as usize
    }

    /// Returns the bytes that each rank sends in forward, backward and step.
    pub fn sent_bytes(&self, bytes: &BytesPerParam, parameters: f64, micro_batches: usize) -> [f64; 3] {
        let [weights, gradients] = [bytes.weight * parameters, bytes.weight * parameters];
        let share = remote_fraction(self.data);
        exchanged_bytes(self.kind, [micro_batches as f64 * weights; 2], gradients, weights)
            .map(|bytes| bytes * share)
    }

    /// Returns the number of reduce-scatters and all-gathers per step, with buckets of this size.
    pub fn collectives(
        &self,
        sizes: &ModelDims,
        bytes: &BytesPerParam,
        bucket: f64,
        micro_batches: usize,
    ) -> f64 {
        let buckets = match self.kind {
            StrategyKind::Zero3 => sizes.layers as f64,
            _ => collectives(bytes.weight * self.parameters(sizes), bucket),
        };
        exchanged_bytes(self.kind, [micro_batches as f64 * buckets; 2], buckets, buckets).iter().sum()
    }
}

/// Returns the number of collectives for gradients in buckets.
pub fn collectives(bytes: f64, bucket: f64) -> f64 {
    (bytes / bucket).ceil()
}

/// Returns the GB of `parameters` in 16 bits: 2 per billion.
pub fn gigabytes(parameters: f64) -> f64 {
    2.0 * parameters / 1e9
}
